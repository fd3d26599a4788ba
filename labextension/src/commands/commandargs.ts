/** The commands and what each takes, as JSON schemas (`CommandRegistry.describedBy`). */

import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

export const CommandIDs = {
  open: 'gpufit:open',
  request: 'gpufit:request',
  train: 'gpufit:train',
  attach: 'gpufit:attach',
  detach: 'gpufit:detach',
  release: 'gpufit:release',
  releaseAll: 'gpufit:release-all',
  extend: 'gpufit:extend',
  logs: 'gpufit:logs',
  copyLine: 'gpufit:copy-line',
  newNotebook: 'gpufit:new-notebook',
  examine: 'gpufit:examine'
} as const;

export type CommandID = (typeof CommandIDs)[keyof typeof CommandIDs];

const allocation = {
  type: 'string',
  description:
    "Name or id of the allocation. Left out: the current notebook's, else the only one, else the person is asked."
};
const confirm = {
  type: 'boolean',
  description: 'Whether the person is asked first where something would be lost.',
  default: true
};
const duration = { type: ['string', 'number'] };

const wishes = {
  gpus: {
    type: 'integer',
    minimum: 1,
    description: 'How many GPUs. Left out: the person is asked.'
  },
  memory: {
    type: ['string', 'integer', 'array'],
    items: { type: ['string', 'integer'] },
    description: 'Memory of each GPU: bytes or text such as 16GiB; a list has one for each.'
  },
  cpus: {
    type: 'number',
    exclusiveMinimum: 0,
    description: 'Cores of the machine for it alone, such as 8 or 0.5.'
  },
  ram: {
    type: ['string', 'integer'],
    description: "The machine's own memory for it alone: bytes or text such as 64GiB."
  },
  name: { type: 'string', description: 'Name of the allocation.' },
  image: { type: 'string', description: 'Container image to run.' },
  time: { ...duration, description: 'It ends by itself after that: seconds, or such as 2h.' },
  shared: { type: 'boolean', description: 'Whether other shared allocations may use them, too.' },
  wait: {
    ...duration,
    description: 'How long it may wait in the queue: seconds, or such as 10m.'
  },
  node: { type: 'string', description: 'Only on nodes whose name matches this pattern.' },
  gpu_model: { type: 'string', description: 'Only GPUs whose model matches this pattern.' },
  model: { type: 'string', description: 'Rather on nodes whose model store has that.' },
  require_model: { type: 'boolean', description: 'Only on those.' },
  write_models: { type: 'boolean', description: 'Whether the model store may be written.' },
  labels: { type: 'object', description: 'Only on nodes with these labels.' },
  priority: { type: 'integer', description: 'Of those that wait, a higher one comes first.' },
  share_card: { type: 'boolean', description: 'Whether several GPUs may be of one card.' }
};

/** The properties of each command's argument; none is required. */
export const ARGUMENTS: Record<CommandID, ReadonlyPartialJSONObject> = {
  'gpufit:open': {
    section: {
      type: 'string',
      enum: ['allocations', 'request', 'cluster'],
      description: 'The section to bring into view.'
    }
  },
  'gpufit:train': {
    path: {
      type: 'string',
      description: 'Path of the script or notebook. Left out: what is selected, or open.'
    },
    run: { type: 'string', description: 'Instead of a path: a script, a notebook, or a command …' },
    folder: { type: 'string', description: '… and the folder that it is run in.' },
    args: {
      type: 'array',
      items: { type: 'string' },
      description: 'What follows the script.'
    },
    env: { type: 'object', description: 'Further variables of its environment.' },
    retries: { type: 'integer', minimum: 0, description: 'How often it is started again.' },
    launcher: { type: 'string', enum: ['torchrun'], description: 'One process for each GPU.' },
    sweep: {
      type: 'object',
      description: 'Lists of values, by parameter: one job for each combination.'
    },
    ...wishes
  },
  'gpufit:request': {
    ...wishes,
    then: {
      type: 'string',
      enum: ['attach', 'new', 'nothing'],
      description: 'Attach the current notebook, a new one, or none.',
      default: 'nothing'
    }
  },
  'gpufit:attach': {
    allocation: {
      type: 'string',
      description: 'Name or id of the allocation. Left out: the only one, else the person is asked.'
    },
    path: { type: 'string', description: 'Path of the notebook. Left out: the current one.' }
  },
  'gpufit:detach': { allocation },
  'gpufit:release': { allocation, confirm },
  'gpufit:release-all': { confirm },
  'gpufit:extend': {
    allocation,
    time: {
      ...duration,
      description: 'How much more time: seconds, or such as 1h. Left out: the person is asked.'
    }
  },
  'gpufit:logs': { allocation },
  'gpufit:copy-line': { allocation },
  'gpufit:new-notebook': { allocation },
  'gpufit:examine': {
    node: { type: 'string', description: 'Name of the node. Left out: the person is asked.' }
  }
};
