import { heights } from '../fitting';

const open = (wants: number | null, least: number) => ({ open: true, wants, least });
const closed = { open: false, wants: 300, least: 60 };

test.each([
  [
    'each what it needs, the cluster the rest',
    [open(150, 60), open(400, 120), open(null, 120)],
    [150, 400, 450]
  ],
  ['a closed one has nothing', [closed, open(400, 120), open(null, 120)], [0, 400, 600]],
  [
    'with the cluster closed, the last open one takes the rest',
    [open(150, 60), open(400, 120), closed],
    [150, 850, 0]
  ],
  ['all closed', [closed, closed, closed], [0, 0, 0]],
  // 470 are missing, of 690 + 480 that can be given
  [
    'too little: all give, the cluster keeps its least',
    [open(750, 60), open(600, 120), open(null, 120)],
    [473, 407, 120]
  ],
  [
    'far too little: the least of each',
    [open(1500, 500), open(900, 500), open(null, 500)],
    [500, 500, 500]
  ]
])('%s', (_, sections, expected) => {
  expect(heights(1000, sections).map(Math.round)).toEqual(expected);
});
