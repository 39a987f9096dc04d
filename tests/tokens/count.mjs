// Writes tests/fixtures/tokens/kinds.jsonl: each kind of text with the counts of the tokenizers. With `--check` it only
// compares them, and fails if a recorded count differs.
//
//   TOKENIZERS=FOLDER node tests/tokens/count.mjs [--check]
import { readFileSync, writeFileSync } from 'node:fs';
import { kinds } from './kinds.mjs';
import { counts } from './tokenizers.mjs';

const kept = new URL('../fixtures/tokens/kinds.jsonl', import.meta.url);
const rows = kinds().map(([kind, text]) => `${JSON.stringify({ kind, ...counts(text), text })}\n`);
if (process.argv.includes('--check')) {
  if (readFileSync(kept, 'utf8') !== rows.join('')) throw new Error('kinds.jsonl is not what the tokenizers count');
  const worst = readFileSync(new URL('worst.jsonl', kept), 'utf8').trim().split('\n').map((row) => JSON.parse(row));
  for (const { pattern, times, ...known } of worst) {
    const found = JSON.stringify(counts(pattern.repeat(times)));
    if (JSON.stringify(known) !== found) throw new Error(`${JSON.stringify(pattern)}: ${found}`);
  }
} else {
  writeFileSync(kept, rows.join(''));
}
console.log(`${rows.length} kinds`);
