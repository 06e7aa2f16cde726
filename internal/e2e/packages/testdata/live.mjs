// A client program. `order N` hands over a write and a read at once, N times, and prints how many reads saw their write. `reads` hands over three
// reads that wait for one another. `hold` waits for one long write.
// With NATS_URL it speaks NATS.
import { outputOf } from "toolfleet";

const over = process.env.NATS_URL ? "nats" : "http";
const { connect } = await import(over === "nats" ? "toolfleet/nats" : "toolfleet");
const [what, n] = process.argv.slice(2);
const fleet = await connect();
const session = `${what}-${over}`;
const call = async (id, name) => outputOf(await fleet.call({ session, id, name }));

if (what === "order") {
  let right = 0;
  for (let i = 1; i <= Number(n); i++) {
    const [, seen] = await Promise.all([call(`w${i}`, "note"), call(`r${i}`, "look")]);
    if (Number(seen) === i) right++;
  }
  console.log(right);
} else if (what === "reads") {
  console.log((await Promise.all(["a", "b", "c"].map((id) => call(id, "meet")))).join());
} else {
  console.log(await call("the-id", "hold"));
}
await fleet.close?.();
