import { localOf } from '../rooted';

test.each([
  ['/srv/lab/deep/a.py', '/srv/lab', 'deep/a.py'],
  ['/srv/lab', '/srv/lab/', ''],
  ['/srv/laboratory/a.py', '/srv/lab', null],
  ['/srv/labs', '/srv/l.bs', null],
  ['/a.py', '/', 'a.py'],
  ['/home/ada/x/deep', '~/x', 'deep'],
  ['/root/deep', '~', 'deep'],
  ['/srv/ada/deep', '~', null],
  ['/srv/lab/a.py', '', null]
])('%s below %s is %s', (path, root, local) => {
  expect(localOf(path, root)).toBe(local);
});
