// Calls to the service. An error is a `Problem`, whose message is a sentence.

export const access = { key: "" };

export const parameters = {}; // sent with every request

export const base = new URL(".", location.href).href; // works behind a path prefix

export class Problem extends Error {
  constructor(status, detail, retryAfter, code) {
    const sentence = detail.charAt(0).toUpperCase() + detail.slice(1);
    super(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter; // seconds, or null if a retry does not help
  }
}

const timedOut = () => new Problem(0, "the service did not answer within 60 seconds");

async function request(path, options, signal) {
  const timeout = AbortSignal.timeout(60_000);
  const signals = signal ? [signal, timeout] : [timeout];
  const response = await fetch(base + path, { ...options, signal: AbortSignal.any(signals) }).catch(() => {
    throw timeout.aborted ? timedOut() : new Problem(0, "the service cannot be reached", 2);
  });
  const answer = await response.json().catch(() => {
    if (timeout.aborted) throw timedOut();
    if (response.ok) throw new Problem(response.status, "the answer is not JSON, so it is not from the service");
    return {}; // a proxy's page
  });
  if (response.ok) return [answer, response.headers];
  const wait = Number(response.headers.get("Retry-After")) || null;
  throw new Problem(response.status, answer.detail ?? `the service answered ${response.status}`, wait, answer.code);
}

const requestBody = (inputs) => (Object.keys(parameters).length ? { inputs, parameters } : { inputs });

// The results of a task, and the times in milliseconds: `total` in the browser, the stages from Server-Timing.
export async function ask(task, inputs, signal) {
  const headers = { "Content-Type": "application/json" };
  if (/[^\x20-\xff]/.test(access.key)) throw new Problem(401, "this key has a character that a browser cannot send");
  if (access.key) headers.Authorization = `Bearer ${access.key}`;
  const started = performance.now();
  const body = JSON.stringify(requestBody(inputs));
  const [answer, received] = await request(task, { method: "POST", headers, body }, signal);
  const stages = [...(received.get("Server-Timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)];
  const timing = Object.fromEntries(stages.map(([, stage, milliseconds]) => [stage, Number(milliseconds)]));
  return { ...answer, timing: { ...timing, total: performance.now() - started } };
}

export async function info() {
  const [answer] = await request("info", {});
  return answer;
}

const shellQuoted = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

export function curl(task, inputs) {
  const key = access.key ? `  -H "Authorization: Bearer $BERT_API_KEY" \\\n` : "";
  const body = JSON.stringify(requestBody(inputs), null, 1).replace(/\n\s*/g, " "); // newlines inside strings are escaped
  return `curl ${base}${task} \\\n${key}  --json ${shellQuoted(body)}`;
}

const literal = (value) => (Array.isArray(value) ? `(${value.map(literal).join(", ")})` : JSON.stringify(value));

export function python(method, given) {
  const key = access.key ? `, api_key=os.environ["BERT_API_KEY"]` : "";
  const cut = parameters.truncate ? ", truncate=True" : "";
  const imports = (key ? "import os\n\n" : "") + "from bert_client import BertClient";
  const url = JSON.stringify(base.replace(/\/$/, ""));
  return `${imports}\n\nwith BertClient(${url}${key}) as bert:\n    print(bert.${method}(${literal(given)}${cut}))`;
}

// For a task that the client has no method for.
export function httpx(task, inputs) {
  const key = access.key ? `, headers={"Authorization": f"Bearer {os.environ['BERT_API_KEY']}"}` : "";
  const imports = (key ? "import os\n\n" : "") + "import httpx";
  const cut = parameters.truncate ? `, "parameters": {"truncate": True}` : "";
  const body = `{"inputs": ${JSON.stringify(inputs)}${cut}}`;
  return `${imports}\n\nprint(httpx.post(${JSON.stringify(base + task)}${key}, json=${body}).json())`;
}
