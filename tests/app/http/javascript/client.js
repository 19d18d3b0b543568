// Hugging Face's own client, pointed at this service instead of theirs.
import { InferenceClient } from "@huggingface/inference";

const [url, key] = process.argv.slice(2);
const client = new InferenceClient(key);
const fill = client.endpoint(`${url}/hf/fill-mask`);
const classify = client.endpoint(`${url}/hf/text-classification`);

const filled = await fill.fillMask({ inputs: "the [MASK]", parameters: { top_k: 2 } });
const aimed = await fill.fillMask({ inputs: "the [MASK]", parameters: { targets: ["good", "bad"] } });
const felt = await classify.textClassification({ inputs: "good", parameters: { top_k: 1 } });
const refused = await fill.fillMask({ inputs: "no mask" }).catch((error) => error);
const locked = await new InferenceClient("guess")
  .endpoint(`${url}/hf/text-classification`)
  .textClassification({ inputs: "good" })
  .catch((error) => error);
console.log(
  JSON.stringify({
    filled,
    aimed: aimed.map((entry) => entry.token_str),
    felt,
    refused: refused.message,
    locked: [locked.httpResponse?.status, locked.message],
  }),
);
