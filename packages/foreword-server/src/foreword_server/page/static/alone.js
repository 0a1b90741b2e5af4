/** Turns: an answer, a race and a replay of this page never run beside each other, so that each is measured alone. */

let lastTask = Promise.resolve();
let tasks = 0;

/** Run `task` after all that was asked for before; `onwait` is called if it has to wait. An aborted `signal` leaves at once. */
export async function alone(task, signal, onwait = () => {}) {
  const before = lastTask;
  let done;
  lastTask = new Promise((resolve) => (done = resolve));
  tasks += 1;
  if (tasks > 1) onwait();
  const left = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true }));
  left.catch(() => {}); // it may come after the end
  try {
    signal.throwIfAborted();
    await Promise.race([before, left]);
    return await task();
  } finally {
    tasks -= 1;
    before.then(done);
  }
}
