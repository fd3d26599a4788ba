/**
 * What REST and events carry (`jupyter_gpufit/server/openapi.yaml`). Memory is bytes, durations are seconds, moments are
 * Unix time; `null` means unknown, never zero.
 */

export interface GpuProcess {
  pid: number;
  memory: number | null;
  container: string | null;
  name: string | null;
}

export interface Gpu {
  uuid: string;
  index: number;
  model: string;
  memory_total: number | null;
  /** Effective: less what allocations reserved and do not use yet. */
  memory_free: number | null;
  memory_used: number | null;
  /** What allocations hold there, used yet or not. */
  memory_claimed: number;
  /** What processes of no allocation use there. */
  memory_foreign: number | null;
  card: string;
  idle: boolean;
  /** Percent. */
  utilization: number | null;
  temperature: number | null;
  power: number | null;
  mig_profile: string | null;
  parent: string | null;
  allocatable: boolean;
  /** Why it is not allocatable. */
  reason: string | null;
  health: string;
  numa: number | null;
  links: string[];
  processes: GpuProcess[];
  /** Ids of the allocations that hold it, anybody's. */
  allocations: string[];
  shareable: boolean;
}

/** A file or a directory in a node's model store. */
export interface StoredModel {
  name: string;
  size: number | null;
  modified: number | null;
}

export interface Node {
  name: string;
  gpus: Gpu[];
  labels: Record<string, string>;
  /** Why nothing can be placed here now; `null`: usable. */
  reason: string | null;
  age: number | null;
  reporting: boolean;
  driver: string | null;
  cuda: string | null;
  launcher: string;
  /** What is in its model store; `null`: it has none, or that is not known. */
  models: StoredModel[] | null;
  /** Whether it has a model store, known or not. */
  model_store: boolean;
  /** Whether that may be written. */
  models_write: boolean;
  /** Cores of the machine. */
  cpus: number | null;
  /** Those that no allocation asked for. */
  cpus_free: number | null;
  /** The most that one allocation may have; `null`: all. */
  cpus_limit: number | null;
  /** Bytes of the machine's own memory; the others likewise. */
  ram: number | null;
  ram_free: number | null;
  ram_limit: number | null;
}

/** Body of `POST allocations` and `POST explain`. */
export interface Request {
  gpus: number;
  memory: number | string | (number | string)[];
  /** Cores of the machine, for all of it. */
  cpus?: number;
  /** Of the machine's own memory, likewise. */
  ram?: number | string;
  name?: string;
  image?: string;
  time?: number | string;
  shared?: boolean;
  wait?: number | string;
  priority?: number;
  node?: string;
  gpu_model?: string;
  /** Of the node's model store: a wish, unless it is required. */
  model?: string;
  require_model?: boolean;
  write_models?: boolean;
  labels?: Record<string, string>;
  share_card?: boolean;
  /** What shall be reached there; relative to the server's own directory, or absolute. */
  folder?: string;
  /** The path of the notebook that it is for. */
  notebook?: string;
  /** What runs there unattended (`POST jobs`). */
  job?: JobRequest;
}

/** What runs in the place of a kernel: a script or notebook of the folder, or a command. (A type, as JSON is.) */
export type JobRequest = {
  run: string;
  args?: string[];
  /** Values may be secrets: they are sent, and never come back. */
  env?: Record<string, string>;
  retries?: number;
  launcher?: string;
  /** Its point in a sweep. */
  sweep?: Record<string, string>;
  turn?: number;
};

/** The job of an allocation, as it is shown: of its variables only the names. */
export interface Job extends Required<Omit<JobRequest, 'env' | 'launcher'>> {
  kind: 'script' | 'notebook' | 'command';
  env: string[];
  launcher: string | null;
}

/** What each parameter of a sweep is to be: one job for each combination. */
export type Sweep = Record<string, string[]>;

export interface GpuUse {
  uuid: string;
  /** Bytes. */
  asked: number;
  peak: number | null;
  /** Percent, on average. */
  busy: number | null;
}

/** What an allocation really used. */
export interface Usage {
  gpus: GpuUse[];
  seconds: number;
  samples: number;
  /** Bytes per GPU that would have been enough; `null`: not less than asked, or not known. */
  suggested: number | null;
}

/** ... as time passed: of each GPU one value for each of the `times`. */
export interface UsageSeries {
  times: number[];
  gpus: {
    uuid: string;
    asked: number;
    memory: (number | null)[];
    utilization: (number | null)[];
  }[];
  usage: Usage | null;
  /** What is to be said of it; empty: nothing. */
  sentence: string;
}

/** What was printed. */
export interface Log {
  logs: string;
  /** Where it ends: what comes after it is asked for with that. */
  mark: string;
  /** Whether nothing can come after it. */
  over: boolean;
}

export interface Nearest {
  node: string;
  gpus: number;
  memory: number;
}

export interface Stage {
  stage: number;
  name: string;
  title: string;
  passed: string[];
  rejected: Record<string, string>;
}

export interface Decision {
  /** `null`: none fits. */
  node: string | null;
  gpus: string[];
  memory: number[];
  policy: string;
  /** The request in words. */
  request: string;
  /** The decision in a sentence or two. */
  summary: string;
  /** No node could ever satisfy it. */
  never: boolean;
  nearest: Nearest | null;
  /** All nodes that would do, the tightest first. */
  fitting: string[];
  stages: Stage[];
}

export type State = 'pending' | 'starting' | 'running' | 'stopping' | 'ended';

export interface Progress {
  phase: string;
  current: number | null;
  total: number | null;
  message: string;
}

export interface Queued {
  position: number;
  of: number;
  until: number;
  missing: string;
  frees: string;
  start: number | null;
}

export interface Allocation {
  id: string;
  name: string;
  owner: string;
  state: State;
  reason: string | null;
  message: string;
  warning: string;
  node: string | null;
  gpus: string[];
  memory: number[];
  kernel_id: string | null;
  created: number;
  /** When it ran first. */
  started: number | null;
  expires: number | null;
  ended: number | null;
  unreachable_since: number | null;
  progress: Progress | null;
  queue: Queued | null;
  version: number;
  image: string | null;
  shared: boolean;
  time: number | null;
  priority: number;
  /** `null`: it has a kernel. */
  job: Job | null;
  /** Of a job: of the last attempt that ended by itself. */
  exit_code: number | null;
  /** Of a job: which start of it this is, from 1. */
  attempt: number;
  /** Of a job: the directory on the server's machine that has its outputs. */
  outputs: string | null;
  usage: Usage | null;
  /** What was asked, as a body that asks for it again (defaults left out). */
  request: Partial<Request>;
}

export interface Attachment {
  allocation: string;
  session: string;
  path: string;
  state: 'waiting' | 'attached' | 'detached';
  /** The kernel that the session has now. */
  kernel_id: string;
  local_kernel_id: string;
}

export interface Warning {
  allocation: string;
  name: string;
  kind: string;
  message: string;
  at: number | null;
}

export interface About {
  version: string;
  owner: string;
  policy: string;
  image: string | null;
  images: string[];
  quota: Record<string, unknown> | null;
  time: number | null;
}

export interface Check {
  check: string;
  verdict: 'right' | 'wrong' | 'not-checked';
  message: string;
  fix: string;
}

export interface Diagnosis {
  node: string;
  deep: boolean;
  done: boolean;
  checks: Check[];
}

export interface NodesChange {
  /** `models` only where they are others than before. */
  changed: (Omit<Node, 'models'> & Partial<Pick<Node, 'models'>>)[];
  removed: string[];
  /** As `GET nodes` shows it. */
  inventory_error?: string | null;
}
