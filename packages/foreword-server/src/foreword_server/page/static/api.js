/** The server: what it serves, and answers as streams of rounds. */

let key = "";

/** Use an API key for all further requests. */
export const useKey = (given) => {
  key = given;
};

/** An error that the server answered, with its status. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("cannot reach the server: it does not answer. Start it with foreword serve", 0);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `the server answered ${response.status}`, response.status);
}

/** Re-score a recording: `recording`, `methods`, `nodes`. */
export const whatIf = (asked, signal) => posted("speculation/whatif", asked, signal);

const posted = async (path, body, signal) => (await request(path, { method: "POST", body: JSON.stringify(body), signal })).json();

/** Return how many tokens a text has. */
export const tokenCount = async (prompt) => (await posted("tokenize", { prompt })).count;

/** Return a first question as the model reads it, with what the chat template adds. */
export async function templated(text) {
  const { tokens } = await posted("tokenize", { messages: [{ role: "user", content: text }] });
  return (await posted("detokenize", { tokens })).prompt;
}

/** Return the model, its methods, and the measured costs of this machine. */
export const described = async () => (await request("speculation")).json();

/**
 * Ask for an answer and call `onround` for each round as it arrives, with what was added to the message since the round
 * before, and before them `onread` with how much of the prompt is read (processed, total, cache, time_ms). What the last rounds
 * held back comes at the end, without a round. Returns the recording without its rounds. `asked`: messages, temperature, seed, max_tokens, speculative.
 */
export async function answer(asked, onround, signal, onread = () => {}) {
  const body = { ...asked, stream: true, return_progress: true, stream_options: { include_speculation: true } };
  const path = "prompt" in body ? "v1/completions" : "v1/chat/completions"; // of a model without a chat template
  const response = await request(path, { method: "POST", body: JSON.stringify(body), signal });
  let [recording, deltas] = [null, []];
  for await (const event of events(response.body)) {
    if (event.error) throw new ServerError(event.error.message, 500);
    if (event.prompt_progress) onread(event.prompt_progress);
    for (const choice of event.choices) {
      deltas.push(choice.delta ?? { content: choice.text ?? "" });
      if (choice.speculation) {
        onround(choice.speculation, deltas);
        deltas = [];
      }
      recording = choice.recording ?? recording;
    }
  }
  if (!recording) throw new ServerError("the server ended the answer early. Ask again", 0);
  onround(null, deltas);
  return recording;
}

/** Yield the JSON of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment, which shows that the server lives
      const data = block.slice("data: ".length);
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
