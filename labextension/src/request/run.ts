/**
 * What is written in the form of a job, and the job that it means: what runs, and how. What it needs is the request's form
 * (`asking.ts`). Pure.
 *
 *     Run ─ readRun ─→ job and sweep, or a sentence for each field that is wrong
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { JobRequest, Sweep } from '../wire';

/** What is written, as it is written. */
export interface Run {
  /** `train.py`, `train.ipynb`, or a command. */
  what: string;
  /** From where, as the server has it; empty: its own directory. */
  folder: string;
  /** Of a script, as in a shell. */
  args: string;
  retries: string;
  /** One process for each GPU. */
  torchrun: boolean;
  /** `lr=1e-3,1e-4 batch=32,64` */
  sweep: string;
  /** Values may be secrets: they are never kept, and shown to nobody. */
  env: readonly Variable[];
}

export interface Variable {
  name: string;
  value: string;
}

export const NOTHING: Run = {
  what: '',
  folder: '',
  args: '',
  retries: '',
  torchrun: false,
  sweep: '',
  env: []
};

export type Kind = 'script' | 'notebook' | 'command';

/** By how it ends, as the server tells them apart: `python train.py` is a command, `'my train.py'` is a script. */
export function kindOf(what: string): Kind {
  const file = fileOf(what);
  return file === null ? 'command' : file.endsWith('.py') ? 'script' : 'notebook';
}

/** The script or notebook that it names; `null`: it is a command. */
export function fileOf(what: string): string | null {
  const words = wordsIn(what) ?? [];
  const file = words.length === 1 ? words[0] : '';
  return /\.(py|ipynb)$/.test(file) ? file : null;
}

/** A field that can be wrong; `env-0` is the name of the first variable, `value-0` its value. */
export type RunField = 'what' | 'args' | 'retries' | 'sweep' | `env-${number}` | `value-${number}`;
export type RunMistakes = Readonly<Partial<Record<RunField, string>>>;

export interface RunReading {
  /** `null`: there are mistakes. */
  job: JobRequest | null;
  folder: string;
  sweep: Sweep;
  /** How many jobs it makes. */
  jobs: number;
  mistakes: RunMistakes;
}

// As jupyter_gpufit/models.py and scheduling/jobs.py have them.
const MOST_RETRIES = 100;
const MOST_JOBS = 256;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;

export function readRun(run: Run, trans: TranslationBundle): RunReading {
  const mistakes: Partial<Record<RunField, string>> = {};
  const field = <T>(name: RunField, empty: T, parse: () => T): T => {
    try {
      return parse();
    } catch (error) {
      mistakes[name] = (error as Error).message;
      return empty;
    }
  };
  const what = run.what.trim();
  const kind = kindOf(what);
  if (what === '') {
    mistakes.what = trans.__('What runs is missing; write the name of a script, or a command');
  }
  const args = kind === 'script' ? field('args', [], () => words(run.args, trans)) : [];
  const retries = field('retries', 0, () => retriesOf(run.retries, trans));
  const sweep = field('sweep', {}, () => sweepOf(run.sweep, trans));
  const env: Record<string, string> = {};
  run.env.forEach(({ name, value }, at) => {
    const known = name.trim();
    if (known === '' && value === '') {
      return;
    }
    field(`env-${at}`, null, () => checkVariable(known, env, trans));
    if (value === '' && mistakes[`env-${at}`] === undefined) {
      // (Where a job is run again, nobody has kept it.)
      mistakes[`value-${at}`] = trans.__("'%1' has no value; write it, or remove it", known);
    }
    env[known] = value;
  });
  const job: JobRequest = {
    run: what,
    ...(args.length > 0 ? { args } : {}),
    ...(Object.keys(env).length > 0 ? { env } : {}),
    ...(retries > 0 ? { retries } : {}),
    ...(run.torchrun && kind === 'script' ? { launcher: 'torchrun' } : {})
  };
  return {
    job: Object.keys(mistakes).length > 0 ? null : job,
    folder: run.folder.trim() || '.',
    sweep,
    jobs: jobsOf(sweep),
    mistakes
  };
}

function jobsOf(sweep: Sweep): number {
  return Object.values(sweep).reduce((count, values) => count * values.length, 1);
}

function retriesOf(text: string, trans: TranslationBundle): number {
  const written = text.trim();
  const number = /^\d*$/.test(written) ? Number(written) : NaN;
  if (!(number <= MOST_RETRIES)) {
    throw new Error(
      trans.__("'%1' is no number of retries; write a whole number up to %2", written, MOST_RETRIES)
    );
  }
  return number;
}

function sweepOf(text: string, trans: TranslationBundle): Sweep {
  const sweep: Sweep = {};
  for (const word of words(text, trans)) {
    const at = word.indexOf('=');
    const name = word.slice(0, Math.max(at, 0));
    const values = word.slice(at + 1).split(',');
    if (!VARIABLE.test(name) || values.includes('')) {
      throw new Error(trans.__("'%1' is no list of values; write it like lr=1e-3,1e-4", word));
    }
    if (name in sweep) {
      throw new Error(trans.__("'%1' is there twice; write its values in one list", name));
    }
    sweep[name] = values;
  }
  const jobs = jobsOf(sweep);
  if (jobs > MOST_JOBS) {
    throw new Error(trans.__('These are %1 jobs; no more than %2 are possible', jobs, MOST_JOBS));
  }
  return sweep;
}

function checkVariable(name: string, others: object, trans: TranslationBundle): null {
  if (!VARIABLE.test(name)) {
    throw new Error(
      trans.__("'%1' is not the name of a variable; use letters, digits and '_'", name)
    );
  }
  if (name in others) {
    throw new Error(trans.__("'%1' is there twice", name));
  }
  return null;
}

const WORD = /(?:[^\s'"\\]|\\[\s\S]|'[^']*'|"(?:[^"\\]|\\[\s\S])*")+/g;
const PART = /\\([\s\S])|'([^']*)'|"((?:[^"\\]|\\[\s\S])*)"/g;

/** The words of a line, as a shell has them: quotes hold them together. */
export function words(line: string, trans: TranslationBundle): string[] {
  const found = wordsIn(line);
  if (found === null) {
    throw new Error(trans.__('A quote or a backslash has nothing that ends it: %1', line.trim()));
  }
  return found;
}

/** `null`: a quote or a backslash has nothing that ends it. */
function wordsIn(line: string): string[] | null {
  const found = line.match(WORD) ?? [];
  if (line.replace(WORD, '').trim() !== '') {
    return null;
  }
  return found.map(word =>
    word.replace(
      PART,
      (_, escaped?: string, single?: string, double?: string) =>
        escaped ?? single ?? (double ?? '').replace(/\\(["\\])/g, '$1')
    )
  );
}
