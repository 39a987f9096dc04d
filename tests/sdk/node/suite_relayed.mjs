// The official `openai` package, unmodified, at the relayed endpoints.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Gateway, load, waitFor } from './gateway.mjs';

const { OpenAI, toFile } = load('openai');
const REQUEST_ID = /^req_[0-9a-f]{32}$/;

let gateway;
before(async () => {
  gateway = await Gateway.start();
});
after(async () => {
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});

const client = () =>
  new OpenAI({ apiKey: gateway.key, baseURL: `${gateway.url}/v1`, maxRetries: 0, timeout: 60_000 });
const complete = (prompt, more = {}) => client().completions.create({ model: 'wide', prompt, ...more });

test('the package requests base64 and decodes it', async () => {
  const answer = await client().embeddings.create({ model: 'wide', input: ['one', 'two three'], dimensions: 64 });
  assert.equal((await gateway.last()).body.encoding_format, 'base64');
  assert.deepEqual([answer.model, answer.usage.prompt_tokens, answer.data.length], ['wide', 3, 2]);
  for (const { embedding } of answer.data) {
    assert.equal(embedding.length, 64);
    assert.ok(Math.abs(embedding.reduce((sum, part) => sum + part * part, 0) - 1) < 1e-5);
  }
});

test('floats give equal vectors', async () => {
  const vector = async (format) => {
    const answer = await client().embeddings.create({ model: 'wide', input: [1, 2, 3], encoding_format: format });
    return answer.data[0].embedding;
  };
  const bytes = Buffer.from(await vector('base64'), 'base64');
  const packed = Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readFloatLE(4 * at));
  assert.deepEqual((await vector('float')).map(Math.fround), packed);
});

test('an endpoint that the model does not serve raises the package\'s exception', async () => {
  const asked = client().embeddings.create({ model: 'small', input: 'x' });
  await assert.rejects(asked, (error) => error instanceof OpenAI.NotFoundError && /does not serve embeddings, only chat/.test(error.message));
});

test('a completion, whole', async () => {
  const answer = await complete('one\n#sim tokens=6', { suffix: 'two three' });
  assert.match(answer.id, REQUEST_ID);
  assert.deepEqual([answer.object, answer.model], ['text_completion', 'wide']);
  assert.equal(answer.choices[0].text.split(' ').length, 6);
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [5, 6, 11]);
});

test('a completion, streamed, with usage', async () => {
  const events = [];
  const asked = { stream: true, stream_options: { include_usage: true } };
  for await (const event of await complete('one\n#sim tokens=9', asked)) events.push(event);
  assert.equal(new Set(events.map((event) => event.id)).size, 1);
  const text = events.map((event) => event.choices[0]?.text ?? '').join('');
  assert.equal(text.split(' ').length, 9);
  const last = events.at(-1);
  assert.deepEqual([last.choices.length, last.usage.prompt_tokens, last.usage.completion_tokens], [0, 3, 9]);
});

test('a completion that is aborted closes its upstream', async () => {
  const { aborted } = await gateway.stats();
  const stream = await complete('x\n#sim tokens=100000 pace=100', { stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  await waitFor('the upstream to be closed', async () => (await gateway.stats()).aborted > aborted);
});

const speak = (input, more = {}) =>
  client().audio.speech.create({ model: 'wide', voice: 'alloy', input, ...more });

test('speech arrives in pieces under its content type', async () => {
  const answer = await speak('one\n#sim tokens=40 pace=200', { response_format: 'opus' });
  assert.equal(answer.headers.get('content-type'), 'audio/opus');
  let [length, pieces] = [0, 0];
  for await (const piece of answer.body) [length, pieces] = [length + piece.length, pieces + 1];
  assert.equal(length, 40 * 256);
  assert.ok(pieces > 1);
});

test('speech that breaks is an error', async () => {
  const answer = await speak('one\n#sim tokens=40 pace=200 cut_after=20');
  await assert.rejects(answer.arrayBuffer());
});

test('images, whole and streamed', async () => {
  const made = await client().images.generate({ model: 'wide', prompt: 'a red fox', n: 2 });
  assert.deepEqual([made.data.length, made.usage.output_tokens], [2, 544]);
  const kinds = [];
  const asked = { model: 'wide', prompt: 'x\n#sim tokens=2', stream: true, partial_images: 2 };
  for await (const event of await client().images.generate(asked)) kinds.push(event.type);
  const partial = 'image_generation.partial_image';
  assert.deepEqual(kinds, [partial, partial, 'image_generation.completed']);
});

test('moderations', async () => {
  const answer = await client().moderations.create({ model: 'wide', input: ['a fox', 'some violence'] });
  assert.deepEqual([answer.model, answer.results.map((result) => result.flagged)], ['wide', [false, true]]);
});

const sound = (bytes) => toFile(Buffer.alloc(bytes, 'RIFF'), 'a.wav', { type: 'audio/wav' });

test('transcription, whole, as text and streamed; the package sends the file first', async () => {
  const asked = async (more) => client().audio.transcriptions.create({ file: await sound(32_000), model: 'wide', ...more });
  assert.match((await asked()).text, /^This answer/);
  assert.match(await asked({ response_format: 'text' }), /^This answer/);
  const { body } = await gateway.last();
  assert.deepEqual([body.model, body.file, body.response_format], ['up-wide', 32_000, 'text']);
  const kinds = [];
  for await (const event of await asked({ stream: true })) kinds.push(event.type);
  assert.equal(kinds.at(-1), 'transcript.text.done');
});

test('a large file comes after the model', async () => {
  const asked = { model: 'wide', file: await sound(5_000_000) };
  assert.match((await client().audio.translations.create(asked)).text, /^This answer/);
  assert.equal((await gateway.last()).body.file, 5_000_000);
  const late = client().audio.translations.create({ file: await sound(5_000_000), model: 'wide' });
  await assert.rejects(late, (error) => error instanceof OpenAI.BadRequestError && /^400 model: /.test(error.message));
});

test('an image edit', async () => {
  const image = [await sound(100), await sound(200)];
  const made = await client().images.edit({ model: 'wide', prompt: 'a fox', n: 2, image });
  assert.equal(made.data.length, 2);
  assert.deepEqual((await gateway.last()).body.image, [100, 200]);
});
