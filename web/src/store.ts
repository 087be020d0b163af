// State of the page: the mesh, traffic and the latest events, updated by long polling. All of it is bounded.

import { computed, signal } from "@preact/signals";
import { Failure, get } from "./api";
import type { About, Edge, Flow, Mesh, MeshAnswer, TrafficAnswer } from "./types";

/** Maximum number of refusals, and of other events, that the page keeps. */
const MAX_EVENTS = 500;
/** Pause before the next poll, so that a busy mesh leaves the page time to draw. */
const PAUSE_MS = 200;
const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 2000;

export const about = signal<About | null>(null);
export const mesh = signal<Mesh | null>(null);
export const edges = signal<Edge[]>([]);
export const refusals = signal<Flow[]>([]);
export const others = signal<Flow[]>([]);
export const lost = signal({ sampled: 0, refusals: 0, forgotten: 0 });
export const silent = signal<string[]>([]);

/** Reason why requests to the server fail. */
export const serverTrouble = signal<string | null>(null);
/** Reason why the server cannot read the mesh, and the age of its last state in seconds. */
export const meshTrouble = signal<{ error: string; age: number | null } | null>(null);

export const isRefusal = (flow: Flow): boolean => flow.event === "refused" || flow.event === "failed";

export const events = computed(() =>
  [...refusals.value, ...others.value].sort((one, other) => other.number - one.number),
);

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Polls forever; failures are retried with exponential backoff. */
async function follow(look: () => Promise<void>): Promise<never> {
  let retry = FIRST_RETRY_MS;
  for (;;) {
    try {
      await look();
      serverTrouble.value = null;
      retry = FIRST_RETRY_MS;
      await pause(PAUSE_MS);
    } catch (error) {
      serverTrouble.value =
        error instanceof Failure
          ? error.message
          : "The dashboard does not answer: is `ambit dashboard` still running? What is shown is old.";
      await pause(retry);
      retry = Math.min(retry * 2, LAST_RETRY_MS);
    }
  }
}

/** Starts to poll the mesh and its traffic. */
export function start(): void {
  let version = 0;
  void follow(async () => {
    about.value ??= await get<About>("about");
    const answer = await get<MeshAnswer>("mesh", { after: version });
    if (answer.mesh) mesh.value = answer.mesh;
    version = answer.version;
    meshTrouble.value = answer.error === null ? null : { error: answer.error, age: answer.ageSeconds };
  });
  let latest = 0;
  void follow(async () => {
    const answer = await get<TrafficAnswer>("traffic", { after: latest });
    if (answer.latest < latest) [refusals.value, others.value] = [[], []];
    latest = answer.latest;
    take(answer);
  });
}

/** Applies a response with traffic to the state. */
export function take(answer: TrafficAnswer): void {
  edges.value = answer.edges;
  lost.value = { ...answer.lost, forgotten: answer.forgotten };
  silent.value = answer.silent ?? [];
  const later = answer.events.filter(isRefusal);
  if (later.length > 0) refusals.value = [...refusals.value, ...later].slice(-MAX_EVENTS);
  const rest = answer.events.filter((event) => !isRefusal(event));
  if (rest.length > 0) others.value = [...others.value, ...rest].slice(-MAX_EVENTS);
}
