// A client of the HTTP API that needs nothing but fetch. Copy it.
import { setTimeout as pause } from "node:timers/promises";

const fleet = process.env.TOOLFLEET_URL ?? "http://127.0.0.1:8090";
const token = process.env.TOOLFLEET_TOKEN; // needed where the server asks for tokens

/**
 * Hands over a model's message and returns the reply. It sends the same request until there is one, which runs nothing twice: the id is
 * the idempotency key. It throws when the fleet refuses the batch, or when no server answers for a minute.
 */
export async function run({ session, id, ...batch }) {
  const url = `${fleet}/v1/sessions/${encodeURIComponent(session)}/batches/${encodeURIComponent(id)}`;
  const headers = { Prefer: "wait=50", ...(token && { Authorization: `Bearer ${token}` }) };
  const request = { method: "PUT", headers, body: JSON.stringify(batch) };
  for (let failed = 0; ; ) {
    let answer, body;
    try {
      answer = await fetch(url, request);
      body = await answer.json();
    } catch (e) {
      if (++failed === 60) throw new Error(`no server answers at ${fleet}`, { cause: e });
      await pause(1000);
      continue;
    }
    failed = 0;
    if (answer.status === 200) return body;
    if (![202, 429, 503].includes(answer.status)) throw new Error(`${body.error.code}: ${body.error.message}`);
    await pause(1000 * Number(answer.headers.get("Retry-After") ?? 1));
  }
}
