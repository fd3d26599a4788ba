import type { Check, Diagnosis } from '../../wire';
import { Examination, findings, tally } from '../examining';

const check = (name: string, verdict: Check['verdict'] = 'right'): Check => ({
  check: name,
  verdict,
  message: `${name} was looked at`,
  fix: ''
});
const found = (done: boolean, ...checks: Check[]): Diagnosis => ({
  node: 'atlas',
  deep: false,
  done,
  checks
});

/** A server that answers with these, one after the other. */
function server(...answers: (Diagnosis | Error)[]) {
  const asked: unknown[] = [];
  const answer = async (...question: unknown[]): Promise<Diagnosis> => {
    asked.push(question);
    const next = answers.shift() ?? new Error('asked too often');
    await Promise.resolve();
    if (next instanceof Error) {
      throw next;
    }
    return next;
  };
  return { asked, examine: answer, diagnosis: answer };
}

test('checks are told as they come, and asked for until all are there', async () => {
  const [one, two] = [check('reporter'), check('report', 'wrong')];
  const api = server(found(false), found(false, one), found(true, one, two));
  const examination = new Examination(api, 'atlas');
  const told: string[] = [];
  examination.changed.connect(() => {
    const { diagnosis, isRunning } = examination;
    told.push(`${diagnosis?.checks.length ?? '-'} ${isRunning ? 'running' : 'done'}`);
  });
  await examination.start(true);
  expect(api.asked).toEqual([
    ['atlas', true],
    ['atlas', 0],
    ['atlas', 1]
  ]);
  expect(told).toEqual(['0 running', '0 running', '1 running', '2 done']);
  expect(examination.diagnosis?.checks).toEqual([one, two]);
});

test('an error is kept with what was found until then; the next round begins anew', async () => {
  const first = check('reporter');
  const api = server(found(false, first), new Error('no'), found(true));
  const examination = new Examination(api, 'atlas');
  await examination.start(false);
  expect([examination.problem, examination.isRunning]).toEqual(['no', false]);
  expect(examination.diagnosis?.checks).toEqual([first]);
  await examination.start(false);
  expect([examination.problem, examination.diagnosis]).toEqual(['', found(true)]);
});

test('there is one round at a time, and none after the end', async () => {
  const api = server(found(false), found(false), found(true));
  const examination = new Examination(api, 'atlas');
  const round = examination.start(false);
  await examination.start(true);
  expect(api.asked).toEqual([['atlas', false]]);
  examination.dispose();
  await round;
  expect(api.asked).toHaveLength(1);
});

test('how many came out how', () => {
  const checks = [check('a'), check('b', 'wrong'), check('c'), check('d', 'not-checked')];
  expect(tally(checks)).toEqual({ right: 2, wrong: 1, 'not-checked': 1 });
});

test('what is to be said of several checks in a row is said once', () => {
  const [one, two, three] = ['tls', 'engine', 'api'].map(name => check(name, 'not-checked'));
  const message = 'there is no Docker engine';
  const said = findings([
    { ...one, message },
    { ...two, message },
    { ...three, message, fix: 'install it' },
    { ...check('tls'), message }
  ]);
  expect(said.map(({ checks, verdict }) => [checks.join(), verdict])).toEqual([
    ['tls,engine', 'not-checked'],
    ['api', 'not-checked'],
    ['tls', 'right']
  ]);
});
