// What trials say together: the landscape of two parameters, the search, and which parameters matter.

const median = (values) => {
  const sorted = [...values].sort((one, other) => one - other);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

/** A trial of GET /trials or of a job's events, in one form. */
export const trialOf = (one) => ({ ...one, ms: one.timing ? one.timing.median_ms : one.median_ms ?? null, ci: one.timing?.ci95_ms ?? one.ci95_ms ?? null });
export const measured = (trials) => trials.filter((trial) => trial.ms != null);

const ROUNDS = ["report", "final", "search"]; // whose median counts, the first that there is: a search's fastest owes something to luck
const rank = ({ ms, round }) => ms == null ? ROUNDS.length : ROUNDS.indexOf(round);

/** What makes two trials those of one config. */
export const configKey = (trial) => trial.key ??= `${trial.kernel} ${Object.entries(trial.config).join(" ")}`;

/**
 * Each config once, in the order of trying, as GET /landscape has it: the trial of its best round, report, final or
 * search, of the newest job; one that was rejected in its last job stays rejected. The vendor's library has no config.
 */
export function configsOf(trials) {
  const found = new Map();
  for (const trial of trials) {
    if (trial.kernel === "vendor") continue;
    const before = found.get(configKey(trial));
    if (!before || trial.ms == null || rank(trial) <= rank(before)) found.set(configKey(trial), trial);
  }
  return [...found.values()];
}

/** The values that a parameter took, in order. */
export const valuesOf = (trials, name) =>
  [...new Set(trials.map((trial) => trial.config[name]).filter((value) => value != null))].sort((one, other) => one - other);

/** Parameters with more than one value. */
export function varied(trials) {
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial.config)))];
  return names.filter((name) => valuesOf(trials, name).length > 1);
}

/** One cell for each pair of values of `x` and `y`: the best or the median time over all other parameters. */
export function landscape(trials, x, y, aggregate = "best") {
  const cells = new Map();
  for (const trial of trials) {
    const key = `${trial.config[x]} ${trial.config[y]}`;
    const cell = cells.get(key) ?? { x: trial.config[x], y: trial.config[y], times: [], rejected: 0, best: null };
    cells.set(key, cell);
    if (trial.ms == null) cell.rejected += 1;
    else {
      cell.times.push(trial.ms);
      if (!cell.best || trial.ms < cell.best.ms) cell.best = trial;
    }
  }
  return [...cells.values()].map(({ times, ...cell }) => ({
    ...cell, count: times.length,
    ms: times.length ? (aggregate === "best" ? cell.best.ms : median(times)) : null,
  }));
}

/** The fastest so far after each trial. */
export function bestSoFar(trials) {
  let best = null;
  return trials.map((trial) => {
    if (trial.ms != null && (best == null || trial.ms < best)) best = trial.ms;
    return best;
  });
}

/** The share of the variance of log time that each parameter explains alone, the largest first. */
export function whatMatters(trials) {
  const logs = trials.map((trial) => Math.log(trial.ms));
  const mean = logs.reduce((sum, value) => sum + value, 0) / logs.length;
  const whole = logs.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return varied(trials).map((name) => {
    const groups = new Map();
    trials.forEach((trial, index) => {
      const group = groups.get(trial.config[name]) ?? [0, 0];
      groups.set(trial.config[name], [group[0] + logs[index], group[1] + 1]);
    });
    const between = [...groups.values()].reduce((sum, [total, size]) => sum + size * (total / size - mean) ** 2, 0);
    return { name, share: whole ? between / whole : 0 };
  }).sort((one, other) => other.share - one.share);
}
