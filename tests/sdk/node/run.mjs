// Runs the Node suites; the last line is `N passed, N failed, N skipped`. Arguments name suites; without any, all run.

import { run } from 'node:test';
import { spec } from 'node:test/reporters';

const all = ['openai', 'anthropic', 'responses', 'relayed', 'matrix', 'agents', 'played'];
const names = process.argv.length > 2 ? process.argv.slice(2) : all;
const files = names.map((name) => new URL(`suite_${name}.mjs`, import.meta.url).pathname);
const counts = { passed: 0, failed: 0, skipped: 0 };

function count(kind) {
  return ({ name, skip, details }) => {
    // Suites and files are not tests, but one that fails by itself, in a hook or while loading, counts.
    const isTest = details.type !== 'suite' && !files.some((file) => file.endsWith(name));
    if (isTest && skip !== undefined) counts.skipped += 1;
    else if (isTest || (kind === 'failed' && details.error?.failureType !== 'subtestsFailed')) counts[kind] += 1;
  };
}

const stream = run({ files, concurrency: 2, timeout: 600_000 });
stream.on('test:pass', count('passed'));
stream.on('test:fail', count('failed'));
stream.on('end', () => {
  if (counts.passed === 0) counts.failed += 1;
  process.exitCode = counts.failed === 0 ? 0 : 1;
  setImmediate(() => console.log(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`));
});
stream.compose(new spec()).pipe(process.stdout, { end: false });
