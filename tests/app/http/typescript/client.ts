// A caller in TypeScript: compiled against the types that were generated from docs/openapi.json, then run.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });

const review: components["schemas"]["TextOrPair"] = { text: "a title", text_pair: "a body" };
const felt = await client.POST("/sentiment", { body: { inputs: ["good", review], parameters: { truncate: true } } });
const filled = await client.POST("/fill-mask", { body: { inputs: "the [MASK]", parameters: { top_k: 2 } } });
const followed = await client.POST("/next-sentence", { body: { inputs: { text: "a", text_pair: "b" } } });
const refused = await client.POST("/fill-mask", { body: { inputs: "no mask" } });
const info = await client.GET("/info");

const labels: string[] | undefined = felt.data?.results.map((result) => result.predictions[0].label);
const words: string[] | undefined = filled.data?.results[0].masks[0].predictions.map((entry) => entry.token_str);
const label: string | undefined = followed.data?.results[0].predictions[0].label;
const code: string | undefined = refused.error?.code;
const limit: number | undefined = info.data?.limits.max_client_batch;
console.log(JSON.stringify({ labels, words, label, code, limit }));
