// Searches for texts with low estimates, by hill climbing over short repeated patterns. The estimator is the gateway's
// own, in a process that returns the tokens of each line (the inside of a JSON string).
//
//   TOKENIZERS=FOLDER node tests/tokens/search.mjs ESTIMATOR [CANDIDATES [SEED]]
//
// Fails if the estimate of a text is below an eighth of its bytes, or an eighth of the lowest count of the tokenizers.
// Prints the worst texts, as rows for tests/fixtures/tokens/worst.jsonl.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { numbers } from './kinds.mjs';
import { counts } from './tokenizers.mjs';

const [program, candidates = '100000', seed = '1'] = process.argv.slice(2);
const below = numbers(seed);
const estimator = spawn(program, { stdio: ['pipe', 'pipe', 'inherit'] });
const answers = createInterface({ input: estimator.stdout })[Symbol.asyncIterator]();

const BYTES = 240; // minimum bytes of a candidate
const LENGTH = 40; // maximum characters of a pattern
const WIDTH = 40; // neighbours evaluated in each step
const STALE = 4; // steps without an improvement that end a climb
const RANGES = [[0, 0x7f], [0x20, 0x7e], [0x61, 0x7a], [0x41, 0x5a], [0x30, 0x39], [0x80, 0x7ff], [0xa0, 0x24f], [0x250, 0x3ff],
  [0x300, 0x36f], [0x400, 0x6ff], [0x700, 0x1fff], [0x2000, 0x2fff], [0x800, 0xffff], [0x4e00, 0x9fff], [0xac00, 0xd7a3],
  [0x10000, 0x10ffff], [0x1d400, 0x1d7ff], [0x1f1e6, 0x1f1ff], [0x1f300, 0x1faff]];

const isCharacter = (code) => code >= 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);

function character() {
  for (;;) {
    const [from, to] = RANGES[below(RANGES.length)];
    const code = from + below(to - from + 1);
    if (isCharacter(code)) return code;
  }
}

// Returns a pattern of any characters, or of neighbours in one block.
function pattern() {
  const one = character();
  const near = () => one + below(27) - 13;
  const any = below(3) === 0 ? near : character;
  const codes = Array.from({ length: 1 + below(24) }, any).filter(isCharacter);
  return codes.length > 0 ? codes : [one];
}

function neighbour(codes) {
  const next = [...codes];
  const at = below(next.length);
  switch (below(5)) {
    case 0: next[at] = character(); break;
    case 1: next.splice(at, 0, character()); break;
    case 2: if (next.length > 1) next.splice(at, 1); break;
    case 3: next[at] += below(9) - 4; break;
    default: { const other = below(next.length); [next[at], next[other]] = [next[other], next[at]]; }
  }
  return next.length <= LENGTH && next.every(isCharacter) ? next : codes;
}

async function evaluate(codes) {
  const unit = String.fromCodePoint(...codes);
  const times = Math.ceil(BYTES / Buffer.byteLength(unit));
  const text = unit.repeat(times);
  estimator.stdin.write(`${JSON.stringify(text).slice(1, -1)}\n`);
  const known = counts(text);
  const least = Math.min(known.o200k, known.cl100k, known.anthropic);
  const tokens = Number((await answers.next()).value);
  return { codes, row: { pattern: unit, times, ...known }, share: tokens / least, floor: (tokens * 8) / Buffer.byteLength(text) };
}

const climbs = [];
let count = 0;
while (count < Number(candidates)) {
  let best = await evaluate(pattern());
  count += 1;
  for (let stale = 0; stale < STALE && count < Number(candidates); stale += 1) {
    const round = await Promise.all(Array.from({ length: WIDTH }, () => evaluate(neighbour(best.codes))));
    count += round.length;
    const least = round.reduce((a, b) => (a.share <= b.share ? a : b));
    const cheap = round.filter((one) => one.floor < 1 || one.share * 8 < 1);
    if (cheap.length > 0) throw new Error(`estimate too low: ${JSON.stringify(cheap[0])}`);
    if (least.share < best.share) { best = least; stale = -1; }
  }
  climbs.push(best);
}
estimator.stdin.end();
climbs.sort((a, b) => a.share - b.share);
const plain = ({ row }) => JSON.stringify(row);
console.error(`${count} candidates, ${climbs.length} climbs; the lowest estimate is ${climbs[0].share.toFixed(3)} of the lowest count`);
console.log(climbs.slice(0, 20).map(plain).join('\n'));
