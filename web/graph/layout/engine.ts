// Solves plans: at once when that is quick, in a worker when it is not, and in short turns where there are no workers.

import type { Layout } from "./layout";
import { type Cache, type PlanBox, Solver } from "./plan";

const AT_ONCE = 40; // milliseconds that may pass before a plan goes to the worker
const TURN = 12;

interface Question {
  id: number;
  plan: PlanBox[];
}

interface Answer {
  id: number;
  layouts: Layout[];
  keys: string[]; // signatures of their tasks
}

export class Engine {
  private readonly cache: Cache = new Map();
  private worker: Worker | null = null;
  private waiting: { id: number; solver: Solver; done: (layouts: Layout[]) => void } | null = null;
  private next = 1;

  /** `source` is the text of this script, which a worker can be made from; empty where it is not known. */
  constructor(source: string) {
    if (source) this.worker = startWorker(source);
    if (!this.worker) return;
    this.worker.addEventListener("message", (event: MessageEvent<Answer>) => this.receive(event.data));
    this.worker.addEventListener("error", (event) => {
      event.preventDefault();
      this.worker = null; // this plan and later ones are solved here
      if (this.waiting) this.takeTurns(this.waiting.id, this.waiting.solver);
    });
  }

  /** The layouts of a plan, or null when they will come later through `done`. A new plan makes an older one void. */
  solve(plan: PlanBox[], done: (layouts: Layout[]) => void): Layout[] | null {
    this.waiting = null;
    const solver = new Solver(plan, this.cache);
    const now = (): number => performance.now();
    if (solver.work(now() + AT_ONCE, now)) return solver.layouts;
    const id = this.next++;
    this.waiting = { id, solver, done };
    if (this.worker) this.worker.postMessage({ id, plan } satisfies Question);
    else this.takeTurns(id, solver);
    return null;
  }

  private takeTurns(id: number, solver: Solver): void {
    const turn = (): void => {
      if (this.waiting?.id !== id) return;
      const now = (): number => performance.now();
      if (solver.work(now() + TURN, now)) this.receive({ id, layouts: solver.layouts, keys: solver.keys });
      else setTimeout(turn, 0);
    };
    setTimeout(turn, 0);
  }

  private receive(answer: Answer): void {
    if (this.waiting?.id !== answer.id) return;
    const { done } = this.waiting;
    this.waiting = null;
    answer.keys.forEach((key, i) => this.cache.set(key, answer.layouts[i]!));
    done(answer.layouts);
  }
}

function startWorker(source: string): Worker | null {
  try {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return new Worker(address);
  } catch {
    return null; // some notebooks forbid workers
  }
}

/** What runs inside the worker. */
export function serve(scope: { onmessage: unknown; postMessage: (answer: Answer) => void }): void {
  const cache: Cache = new Map();
  scope.onmessage = (event: MessageEvent<Question>): void => {
    const solver = new Solver(event.data.plan, cache);
    solver.work(Infinity, () => 0);
    scope.postMessage({ id: event.data.id, layouts: solver.layouts, keys: solver.keys });
  };
}
