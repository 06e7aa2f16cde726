/**
 * Runs one call for the executor of an SDK. When the signal aborts, the call in the fleet is
 * aborted too, because nobody reads its result any more.
 * @param {import("./fleet.js").Fleet} fleet
 * @param {import("./messages.js").Call & {signal?: AbortSignal}} call
 */
export async function runCall(fleet, call) {
  const abort = () => void fleet.abort(call.session, { id: call.id, reason: "The agent waits for it no longer." }).catch(() => {});
  call.signal?.addEventListener("abort", abort, { once: true });
  try {
    return await fleet.call(call);
  } finally {
    call.signal?.removeEventListener("abort", abort);
  }
}
