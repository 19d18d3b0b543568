// The three panels. User text enters the page as text nodes only.

import { access, ask, curl, httpx, info, parameters, python } from "./service.js";

const MASK = "[MASK]";
const MOST_BUTTONS = 2000; // a button for each word of a book takes seconds and much memory
const MOST_LABELS = 10; // of several hundred, the others have scores near 0
const PAUSE = 250; // milliseconds after the last keystroke before a request is sent
const WAIT = 1000; // milliseconds of a request before the page says that it waits

const $ = (selector, root = document) => root.querySelector(selector);
const percent = (share) => `${(100 * share).toFixed(share > 0.0995 || share < 0.0005 ? 0 : 1)} %`;
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const words = (text) => [...text.matchAll(/\[MASK\]|[\p{L}\p{N}]+(?:['’-][\p{L}\p{N}]+)*/gu)];
const spliced = (text, word, by) => text.slice(0, word.index) + by + text.slice(word.index + word[0].length);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// A text as a list of nodes, with `make(word)` in place of each word.
function marked(text, make) {
  const parts = [];
  let end = 0;
  for (const word of words(text)) {
    parts.push(text.slice(end, word.index), make(word));
    end = word.index + word[0].length;
  }
  return [...parts, text.slice(end)];
}

// A row of a ranking: name, bar and share. A button if it has the action `act`.
function bar(name, share, longest, act) {
  const label = element("span", { className: "name", title: name }, name);
  const track = element("span", { className: "bar" });
  track.style.setProperty("--share", share / longest);
  const row = element(act ? "button" : "div", { className: "row" }, label, track, element("span", {}, percent(share)));
  if (act) row.addEventListener("click", act);
  return element("li", {}, row);
}

// A scale between two labels; `share` is the score of the right one.
function gauge(left, right, share, verdict) {
  const needle = element("span", { className: "needle" });
  needle.style.setProperty("--share", share);
  const ends = element("p", { className: "ends" }, element("span", {}, left), element("span", {}, right));
  return [element("p", { className: "verdict" }, verdict), element("div", { className: "gauge" }, needle), ends];
}

// The wording of the classifier's panel, which depends on its labels.
const OPINIONS = {
  task: "sentiment",
  tab: "Sentiment",
  field: "An opinion",
  examples: [
    ["The plot is thin, but the actors are wonderful and I loved every minute of it."],
    ["It broke after two days and nobody answers my letters."],
    ["Not bad at all, though a little long."],
  ],
};
const TEXTS = {
  task: "classify",
  tab: "Classify",
  field: "A text",
  examples: [
    ["The match ended in a draw after a late goal."],
    ["Which train do I take from the airport to the city?"],
    ["The new phone has a larger screen, and its battery lasts two days."],
  ],
};

const panels = {
  "fill-mask": {
    fields: ["masked"],
    examples: [
      ["This was one of the best films I have ever [MASK]."],
      ["She opened the [MASK] and read the [MASK] twice."],
      ["I drink a cup of [MASK] every morning."],
    ],
    hidden: new Map(), // the word behind each mask, by its number in the text
    typed() {
      this.hidden.clear();
    },
    masks: [], // of the last response
    inputs: ([text]) => text,
    python: ([text]) => python("fill_mask", text),
    missing: ([text]) => (text.includes(MASK) ? null : "No word is masked yet."),

    draw([text]) {
      const tooMany = words(text).length > MOST_BUTTONS;
      $("#masked-hint").textContent = tooMany
        ? `A text of more than ${MOST_BUTTONS.toLocaleString("en")} words has no buttons; write ${MASK} in place of a word.`
        : "Click a word to mask it; click the mask to restore the word.";
      if (tooMany) return $("#masked-words").replaceChildren();
      const toggle = (word) => {
        const masked = word[0] === MASK;
        const chip = element("button", { className: masked ? "chip masked" : "chip" }, word[0]);
        chip.setAttribute("aria-pressed", masked);
        chip.addEventListener("click", () => {
          const index = [...$("#masked-words").children].indexOf(chip);
          const before = text.slice(0, word.index);
          if (!masked) this.hidden.set(index, word[0]);
          const likeliest = this.masks[before.split(MASK).length - 1]?.predictions[0]?.token_str ?? "…";
          put("fill-mask", [spliced(text, word, masked ? (this.hidden.get(index) ?? likeliest) : MASK)]);
          $("#masked-words").children[index]?.focus();
        });
        return chip;
      };
      $("#masked-words").replaceChildren(...marked(text, toggle));
    },

    show({ masks }, output) {
      this.masks = masks;
      const lists = masks.map(({ predictions }, index) => {
        const choose = ({ sequence }) => () => {
          const chips = [...$("#masked-words").children];
          const chosen = chips.indexOf(chips.filter((chip) => chip.classList.contains("masked"))[index]);
          put("fill-mask", [sequence]);
          ($("#masked-words").children[chosen] ?? $("#masked")).focus();
        };
        const rows = predictions.map((p) => bar(p.token_str, p.score, predictions[0].score, choose(p)));
        const heading = masks.length > 1 ? [element("h2", {}, `Mask ${index + 1}`)] : [];
        return element("div", {}, ...heading, element("ol", {}, ...rows));
      });
      output.replaceChildren(element("div", { className: "columns" }, ...lists));
    },
  },

  "next-sentence": {
    fields: ["first", "second"],
    examples: [
      ["She opened the letter.", "It was from her brother."],
      ["She opened the letter.", "The match ended in a draw."],
      ["We ordered the soup of the day.", "It was cold when it came."],
    ],
    inputs: ([text, text_pair]) => ({ text, text_pair }),
    python: (texts) => python("next_sentence", texts),

    show({ predictions }, output) {
      const share = predictions.find(({ label }) => label === "IS_NEXT").score;
      const verdict = [element("strong", {}, percent(share)), " that the second follows the first"];
      output.replaceChildren(...gauge("does not follow", "follows", share, element("span", {}, ...verdict)));
    },
  },

  sentiment: {
    fields: ["opinion"],
    ...OPINIONS,
    isRegression: false, // its scores are numbers, not shares
    inputs: ([text]) => text,
    python: ([text]) => ([OPINIONS.task, TEXTS.task].includes(task()) ? python : httpx)(task(), text),

    // The panel speaks of opinions if the classifier has the labels of the shipped one, else of texts.
    adopt({ labels, problem_type, tasks }) {
      const { task, isRegression, examples } = this;
      Object.assign(this, labels.toSorted().join() === "NEGATIVE,POSITIVE" ? OPINIONS : TEXTS);
      const names = [this.task, ...tasks.filter((name) => name !== "sentiment")]; // further tasks for the same labels
      if (names.includes($("#task").value)) this.task = $("#task").value;
      $("#task").replaceChildren(...names.map((name) => element("option", { selected: name === this.task }, name)));
      $("#choosing").hidden = names.length === 1;
      this.isRegression = problem_type === "regression";
      if (this.task === task && this.isRegression === isRegression) return;
      $("#tab-sentiment").textContent = this.tab;
      $("[for=opinion]").textContent = this.field;
      if (examples.flat().includes($("#opinion").value)) fill("sentiment", this.examples[0]);
      if (current === "sentiment") changed(0);
    },

    show({ predictions }, output) {
      $("#influence").hidden = true;
      const number = ({ label, score }) =>
        element("li", {}, element("p", { className: "verdict" }, element("strong", {}, score.toFixed(2)), ` ${label}`));
      const share = ({ label, score }) => bar(label, score, 1);
      const rows = predictions.slice(0, MOST_LABELS).map(this.isRegression ? number : share);
      const others = predictions.length - rows.length;
      const rest = others ? [element("p", { className: "hint" }, `${others} more with lower scores`)] : [];
      output.replaceChildren(element("ol", {}, ...rows), ...rest);
    },

    // Occlusion: a word's influence is how much the score falls when the word is masked.
    async after([text], { predictions }, signal) {
      const weighed = words(text).slice(0, mostWords);
      if (!weighed.length) return;
      const label = (predictions.find((p) => /^positive$/i.test(p.label)) ?? predictions[0]).label;
      const score = (result) => result.predictions.find((p) => p.label === label).score;
      const hidden = weighed.map((word) => spliced(text, word, MASK));
      const { results } = await ask(this.task, hidden, signal);
      const shifts = results.map((result, index) => [weighed[index], score({ predictions }) - score(result)]);
      this.colour(text, label, shifts);
    },

    colour(text, label, shifts) {
      $("#influence").hidden = false;
      if (shifts.every(([, by]) => Math.abs(by) < 0.005)) {
        $("#influence .words").replaceChildren(text);
        $("#influence .hint").textContent = "No single word changes the score.";
        return;
      }
      const shift = new Map(shifts.map(([word, by]) => [word.index, by]));
      const most = Math.max(...shifts.map(([, by]) => Math.abs(by)), 0.01);
      const signed = (by) => `${by < 0 ? "−" : "+"}${Math.abs(by).toFixed(2)}`;
      const tinted = (word) => {
        const by = shift.get(word.index);
        if (by === undefined) return word[0];
        const made = element("span", { className: by < 0 ? "against" : "for", title: signed(by) }, word[0]);
        made.style.setProperty("--weight", Math.abs(by) / most);
        return made;
      };
      const ranked = shifts.toSorted(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, 3);
      const told = ranked.map(([word, by]) => `“${word[0]}” ${signed(by)}`).join(", ");
      $("#influence .words").replaceChildren(...marked(text, tinted));
      const each = words(text).length > shifts.length ? `each of the first ${shifts.length} words` : "each word";
      $("#influence .hint").textContent = `What ${each} adds to ${label}, found by masking it. The largest: ${told}.`;
    },
  },
};

let mostWords = 100; // masked one at a time
let current = "fill-mask";
let pending = new AbortController();
let timer;
let statusTimer;

const busy = (state) => $("main").setAttribute("aria-busy", state);
const task = () => panels[current].task ?? current;
const values = () => panels[current].fields.map((id) => $(`#${id}`).value);

function put(name, texts) {
  fill(name, texts);
  if (name === current) changed(0);
}

function fill(name, texts) {
  panels[name].fields.forEach((id, index) => ($(`#${id}`).value = texts[index]));
}

function changed(pause = PAUSE) {
  const panel = panels[current];
  panel.draw?.(values());
  const inputs = panel.inputs(values());
  $("#curl").textContent = curl(task(), inputs);
  $("#python").textContent = panel.python(values());
  later(pause);
}

function later(pause) {
  clearTimeout(timer);
  pending.abort();
  busy(true);
  timer = setTimeout(run, pause);
}

async function run() {
  const [panel, texts, output] = [panels[current], values(), $(`#${current} output`)];
  const { signal } = (pending = new AbortController());
  const missing = texts.some((text) => !text.trim()) ? "The text is empty." : panel.missing?.(texts);
  if (missing) return fail(missing, output);
  const waiting = setTimeout(wait, WAIT, output);
  try {
    const answer = await ask(task(), panel.inputs(texts), signal).finally(() => clearTimeout(waiting));
    say("");
    leaveAccess();
    panel.show(answer.results[0], output);
    tell(answer);
    busy(false);
    await panel.after?.(texts, answer.results[0], signal).catch(() => {}); // the answer is complete without it
  } catch (error) {
    if (!signal.aborted) refused(error, output); // else a newer request replaced this one
  }
}

function refused(error, output) {
  if (error.status === 401) return requireKey(error, output);
  if (error.status === 0 || error.status === 503) introduce(); // the header still says "ready"
  if (error.code === "text_too_long") $("#cutting").hidden = false;
  fail(error.retryAfter ? `${error.message} Trying again…` : error.message, output);
  if (error.retryAfter) timer = setTimeout(run, 1000 * error.retryAfter);
}

function requireKey(error, output) {
  const isNew = $("#access").hidden;
  $("#access").hidden = false;
  fail(access.key ? error.message : "Enter an API key above.", output);
  if (isNew && !access.key) $("#key").focus(); // only once: the user may be typing a text
}

function leaveAccess() {
  const hasFocus = $("#access").contains(document.activeElement);
  $("#access").hidden = true;
  if (hasFocus) $(`#${panels[current].fields[0]}`).focus();
}

function wait(output) {
  say("Waiting for the service…");
  clear(output);
}

function fail(sentence, output) {
  busy(false);
  say(sentence);
  clear(output);
}

function clear(output) {
  output.replaceChildren();
  $("#influence").hidden = true;
  $("#timing").textContent = "";
}

function say(sentence) {
  if ($("#problem").textContent !== sentence) $("#problem").textContent = sentence;
}

function tell({ results: [{ tokens, truncated }], timing }) {
  const stages = ["tokenize", "queue", "inference"].filter((stage) => stage in timing);
  const parts = stages.map((stage) => `${stage} ${timing[stage].toFixed(1)} ms`);
  const read = `${tokens} tokens${truncated ? ", cut to the model’s limit" : ""}`;
  $("#timing").textContent = [read, ...parts, `round trip ${timing.total.toFixed(0)} ms`].join(" · ");
}

function open(name) {
  current = Object.hasOwn(panels, name) ? name : "fill-mask";
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.getAttribute("aria-controls") === current;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    $(`#${tab.getAttribute("aria-controls")}`).hidden = !chosen;
  }
  say("");
  changed(0);
}

function choose(name) {
  history.replaceState(null, "", `#${name}`);
  open(name);
}

function walk(event) {
  const names = Object.keys(panels);
  const at = names.indexOf(current);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(names.at(to % names.length));
  $(`#tab-${current}`).focus();
}

async function copy(event) {
  const button = event.target;
  const source = $(`#${button.dataset.copy}`);
  getSelection().selectAllChildren(source); // without HTTPS there is no clipboard, only Ctrl-C
  await navigator.clipboard?.writeText(source.textContent);
  button.textContent = navigator.clipboard ? "Copied" : "Press Ctrl-C";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

async function introduce() {
  clearTimeout(statusTimer);
  try {
    const { status, models, device, dtype, limits } = await info();
    mostWords = Math.min(mostWords, limits.max_client_batch);
    const classifier = models.find(({ labels }) => labels);
    if (classifier) panels.sentiment.adopt(classifier); // there is none while the service loads
    const sizes = models.map(({ name, parameters }) => `${name} ${compact.format(parameters)}`);
    $("#status").textContent = [status, ...sizes, `${device} ${dtype}`].join(" · ");
    if (status !== "ready") introduceAgain(1000);
  } catch (error) {
    $("#status").textContent = error.message;
    introduceAgain(3000);
  }
}

function introduceAgain(pause) {
  clearTimeout(statusTimer); // two requests may have failed at the same time
  statusTimer = setTimeout(introduce, pause);
}

for (const [name, panel] of Object.entries(panels)) {
  let shown = 0;
  fill(name, panel.examples[0]);
  for (const id of panel.fields) {
    $(`#${id}`).addEventListener("input", () => {
      panel.typed?.();
      changed();
    });
  }
  $(`#${name} [data-example]`).addEventListener("click", () => {
    panel.typed?.();
    put(name, panel.examples[++shown % panel.examples.length]);
  });
  $(`#tab-${name}`).addEventListener("click", () => choose(name));
}
$("[role=tablist]").addEventListener("keydown", walk);
$("#task").addEventListener("change", ({ target }) => {
  panels.sentiment.task = target.value;
  changed(0);
});
$("#swap").addEventListener("click", () => put("next-sentence", values().reverse()));
$("#access").addEventListener("submit", (event) => {
  event.preventDefault();
  access.key = $("#key").value.trim();
  changed(0);
});
$("#cut").addEventListener("change", ({ target }) => {
  if (target.checked) parameters.truncate = true;
  else delete parameters.truncate;
  changed(0);
});
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", copy);
addEventListener("hashchange", () => open(location.hash.slice(1)));
await introduce(); // the kind of classifier decides how its results are drawn
open(location.hash.slice(1));
