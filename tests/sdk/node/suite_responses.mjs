// The official `openai` package, unmodified, at the responses endpoint: models behind an upstream of every format.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Gateway, load } from './gateway.mjs';

const { OpenAI } = load('openai');
const REQUEST_ID = /^req_[0-9a-f]{32}$/;
const PIXEL = 'data:image/png;base64,iVBORw0KGgo=';
const TEXT = 'This answer was made by the';
const WEATHER = {
  type: 'function',
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: false,
};

let gateway;
before(async () => {
  gateway = await Gateway.start();
});
after(async () => {
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});

const client = () =>
  new OpenAI({ apiKey: gateway.key, baseURL: `${gateway.url}/v1`, maxRetries: 0, timeout: 60_000 });

for (const model of ['small', 'large', 'newer']) {
  const create = (input, more = {}) => client().responses.create({ model, input, ...more });

  describe(model, () => {
    test('whole', async () => {
      const answer = await create('one two\n#sim tokens=6');
      assert.match(answer.id, REQUEST_ID);
      assert.deepEqual([answer.output_text, answer.status, answer.model], [TEXT, 'completed', model]);
      assert.equal(answer.usage.output_tokens, 6);
    });

    test('streamed', async () => {
      const events = [];
      for await (const event of await create('x\n#sim tokens=6', { stream: true })) events.push(event);
      const deltas = events.filter(({ type }) => type === 'response.output_text.delta').map(({ delta }) => delta);
      assert.equal(deltas.join(''), TEXT);
      assert.deepEqual([events[0].type, events.at(-1).type], ['response.created', 'response.completed']);
      assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
    });

    test('helper, tools and results', async () => {
      const input = [{ role: 'user', content: 'weather? #sim tool=get_weather calls=2 think=3' }];
      const answer = await client().responses.stream({ model, input, tools: [WEATHER] }).finalResponse();
      const calls = answer.output.filter(({ type }) => type === 'function_call');
      assert.deepEqual(calls.map(({ arguments: text }) => JSON.parse(text)), [{ city: 'Oslo' }, { city: 'Oslo' }]);
      const outputs = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: '4 C' }));
      const again = await create([...input, ...answer.output, ...outputs], { tools: [WEATHER] });
      assert.equal(again.status, 'completed');
    });

    test('an image', async () => {
      const content = [{ type: 'input_image', image_url: PIXEL, detail: 'auto' }, { type: 'input_text', text: 'what?' }];
      assert.equal((await create([{ role: 'user', content }])).status, 'completed');
    });

    test('truncated', async () => {
      const answer = await create('x #sim tokens=40', { max_output_tokens: 20 });
      assert.deepEqual([answer.status, answer.incomplete_details.reason], ['incomplete', 'max_output_tokens']);
    });

    test('an error before and in mid-stream', async () => {
      await assert.rejects(create('x #sim status=503'), { status: 500, code: 'server_error' });
      await assert.rejects(async () => {
        for await (const event of await create('x #sim tokens=9 cut_after=3', { stream: true })) assert.ok(event.type);
      }, { code: 'server_error' });
    });

    test('stored responses are refused', async () => {
      const refused = { status: 400, code: 'invalid_value', param: 'previous_response_id' };
      await assert.rejects(create('x', { previous_response_id: 'resp_1' }), refused);
    });
  });
}
