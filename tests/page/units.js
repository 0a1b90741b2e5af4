async () => {
  const { alone } = await import("/page/alone.js");
  const { chosenBy } = await import("/page/round.js");
  const { compared, outcomeOf } = await import("/page/race.js");
  const { expected, forward, speedUp, wordsInTimeOfOne } = await import("/page/costs.js");
  const { add, emptyFigures, gainOf } = await import("/page/figures.js");
  const { Progress } = await import("/page/chat/progress.js");
  const { examplesFor, modelName, servedMethods } = await import("/page/chat/words.js");

  /* rounds of measured milliseconds: plain ones write a token, drafted ones three */
  const step = { propose_ms: 0, verify_ms: 0, commit_ms: 0, prompt_rows: 0 };
  const one = (token) => ({ draft: [], accepted: [], added: { token, text: "x", kind: "plain" }, pieces: ["x"] });
  const undrafted = { reason: "budget", text: "" };
  const plain = (ms) => ({ ...step, ...one(1), score_ms: ms, undrafted });
  const node = (parent) => ({ token: 1, text: "x", parent });
  const drafted = (ms) => ({ ...plain(ms), undrafted: null, draft: [node(-1), node(0)], accepted: [0, 1], pieces: ["x", "x", "x"] });
  const rounds = (size, make, ...times) => Array.from({ length: size }, (_, at) => make(times[at % times.length]));
  const [slow, fast, noisy] = [rounds(20, plain, 30, 31), rounds(20, drafted, 40, 41), rounds(20, drafted, 30, 150)];
  const gain = (all, paced = null) => {
    const figures = emptyFigures();
    for (const round of all) add(figures, round);
    return gainOf(figures, all, paced).text;
  };
  const outcome = (first, second) => outcomeOf({ rounds: first }, { rounds: second });

  const differing = (...pairs) => pairs.map(([a, b]) => Object.values(compared({ rounds: a.map(one) }, { rounds: b.map(one) })));
  const table = { 1: 10, 4: 13, 8: 17 };
  const costs = { forward_ms: table, overhead_ms: 0, drafting: { start_ms: 1, token_ms: 2 } };

  /* two tasks at once, and a third that leaves the queue */
  const order = [];
  const { signal } = new AbortController();
  const leaving = new AbortController();
  const task = (name) => async () => {
    order.push(`${name} begins`);
    await new Promise((resolve) => requestAnimationFrame(resolve));
    order.push(`${name} ends`);
  };
  const first = alone(task("first"), signal);
  const left = alone(task("left"), leaving.signal).catch((error) => order.push(error.name));
  const last = alone(task("last"), signal, () => order.push("last waits"));
  leaving.abort();
  await Promise.all([first, left, last]);

  const progress = new Progress();
  progress.show({ processed: 2560, total: 7979, cache: 512, time_ms: 20480 });
  const methods = ["none", "ngram", "lm", "mtp", "tli", "quantized", "predicted", "auto", "other"].map((name) => ({ name, summary: name }));
  const served = (model, method = "lm") => servedMethods({ model, method, methods }).map(({ name }) => name).join(" ");
  return {
    speeds: [gain(slow), gain(fast), gain([...slow, ...fast]), gain(fast, { perToken: 27, error: 0.01 }), gain([...slow, ...noisy]), gain([...rounds(4, plain, 30), ...fast])],
    outcomes: [outcome(slow, fast), outcome(slow, rounds(20, plain, 20, 21)), outcome(slow, noisy), outcome(slow, rounds(20, drafted, 180, 182)), outcome(slow, rounds(3, drafted, 40))],
    differing: differing([[1, 2, 3], [1, 5, 3]], [[1, 2], [1, 2, 3]], [[1], [1]]),
    costs: [forward(table, 1), forward(table, 6), forward(table, 12), expected(0.5, 2), expected(1, 3), speedUp(costs, 1, 3, 1), speedUp(costs, 0.9, 0, 1), wordsInTimeOfOne(table)],
    reasons: [chosenBy({ method: "lm", speeds: { none: 1, suffix: 1.21, lm: 1.93 } }), chosenBy({ method: "none", speeds: { none: 1, lm: 0.812 } }), chosenBy({ method: "ngram", speeds: { none: 1 } }), chosenBy({ method: "" }), chosenBy({})],
    order: order.join(", "),
    read: progress.text.textContent,
    models: [modelName("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), modelName("org/SmolLM2-135M-Instruct"), modelName("foreword-family")].join(", "),
    methods: [served("qwen.gguf"), served("foreword-family"), served("qwen.gguf", "auto(lm, ngram)")],
    examples: ["foreword-family", "qwen2.5-coder", "llama-3"].map((name) => examplesFor(name)[0].text).join(", "),
  };
}
