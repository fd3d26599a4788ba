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
}

/** Body of `POST allocations` and `POST explain`. */
export interface Request {
  gpus: number;
  memory: number | string | (number | string)[];
  name?: string;
  image?: string;
  time?: number | string;
  shared?: boolean;
  wait?: number | string;
  priority?: number;
  node?: string;
  model?: string;
  labels?: Record<string, string>;
  share_card?: boolean;
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
  changed: Node[];
  removed: string[];
  /** As `GET nodes` shows it. */
  inventory_error?: string | null;
}
