// The official `openai` package, unmodified, at the chat endpoint: models behind an upstream of the same format, and
// translated ones.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Gateway, load, waitFor } from './gateway.mjs';

const { OpenAI } = load('openai');
const REQUEST_ID = /^req_[0-9a-f]{32}$/;
const PIXEL = 'data:image/png;base64,iVBORw0KGgo=';
const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather in a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

let gateway;
before(async () => {
  gateway = await Gateway.start();
});
after(async () => {
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});

const client = (key, options = {}) =>
  new OpenAI({ apiKey: key ?? gateway.key, baseURL: `${gateway.url}/v1`, maxRetries: 0, timeout: 60_000, ...options });
const user = (content) => [{ role: 'user', content }];

for (const [model, hasty] of [['small', 'hasty'], ['large', 'hasty-large']]) {
  const translated = model === 'large';
  const create = (content, { key, options, ...more } = {}) =>
    client(key, options).chat.completions.create({ model, messages: user(content), ...more });

  describe(`${model}: answers`, () => {
    test('whole', async () => {
      const answer = await create('one two\n#sim tokens=6');
      assert.match(answer.id, REQUEST_ID);
      assert.equal(answer._request_id, answer.id);
      assert.deepEqual([answer.object, answer.model], ['chat.completion', model]);
      assert.equal(answer.choices[0].finish_reason, 'stop');
      assert.equal(answer.choices[0].message.content.split(' ').length, 6);
      const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
      assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [4, 6, 10]);
    });

    test('streamed', async () => {
      const chunks = [];
      for await (const chunk of await create('x\n#sim tokens=9', { stream: true })) chunks.push(chunk);
      assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
      assert.match(chunks[0].id, REQUEST_ID);
      assert.ok(chunks.every((chunk) => chunk.model === model && !chunk.usage));
      const text = chunks.map((chunk) => chunk.choices[0].delta.content ?? '').join('');
      assert.equal(text.split(' ').length, 9);
      assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
    });

    test('streamed with usage', async () => {
      const asked = { stream: true, stream_options: { include_usage: true } };
      let last;
      for await (const chunk of await create('one\n#sim tokens=9', asked)) last = chunk;
      assert.deepEqual([last.choices.length, last.usage.prompt_tokens, last.usage.completion_tokens], [0, 3, 9]);
    });

    test('the stream helper accumulates', async () => {
      const stream = client().chat.completions.stream({ model, messages: user('größe 東京\n#sim echo') });
      const answer = await stream.finalChatCompletion();
      assert.equal(answer.choices[0].message.content, 'größe 東京');
      assert.deepEqual([answer.model, answer.choices[0].finish_reason], [model, 'stop']);
    });

    test('concurrent requests', async () => {
      const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => create(`${n}\n#sim echo`)));
      assert.deepEqual(answers.map((answer) => Number(answer.choices[0].message.content)), [...Array(40).keys()]);
    });

    test('a stream that is aborted closes its upstream', async () => {
      const { aborted } = await gateway.stats();
      const stream = await create('x\n#sim tokens=100000 pace=100', { stream: true });
      for await (const chunk of stream) {
        assert.ok(chunk.id);
        break;
      }
      stream.controller.abort();
      await waitFor('the upstream to be closed', async () => (await gateway.stats()).aborted > aborted);
    });
  });

  describe(`${model}: tools and images`, () => {
    test('a call and its loop', async () => {
      const messages = user('What about get_weather?');
      const asked = { model, tools: [WEATHER] };
      const first = await client().chat.completions.create({ ...asked, messages });
      assert.equal(first.choices[0].finish_reason, 'tool_calls');
      const { message } = first.choices[0];
      const [call] = message.tool_calls;
      assert.equal(call.function.name, 'get_weather');
      assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Oslo' });
      messages.push(message, { role: 'tool', tool_call_id: call.id, content: '4 degrees' });
      const second = await client().chat.completions.create({ ...asked, messages });
      assert.equal(second.choices[0].finish_reason, 'stop');
      const [, use, result] = (await gateway.last()).body.messages;
      const sent = translated
        ? [use.content.at(-1).id, result.content[0].tool_use_id, result.content[0].content]
        : [use.tool_calls[0].id, result.tool_call_id, result.content];
      assert.deepEqual(sent, [call.id, call.id, '4 degrees']);
    });

    test('the helper runs the whole loop', async () => {
      const calls = [];
      const tool = {
        type: 'function',
        function: {
          ...WEATHER.function,
          parse: JSON.parse,
          function: (args) => {
            calls.push(args);
            return '4 degrees';
          },
        },
      };
      const messages = user('What about get_weather?');
      const runner = client().chat.completions.runTools({ model, messages, tools: [tool], stream: true });
      assert.ok((await runner.finalContent()).length > 0);
      assert.deepEqual(calls, [{ city: 'Oslo' }]);
    });

    test('parallel calls, streamed, by the helper', async () => {
      const asked = { model, messages: user('x\n#sim tool calls=2'), tools: [WEATHER] };
      const answer = await client().chat.completions.stream(asked).finalChatCompletion();
      const calls = answer.choices[0].message.tool_calls;
      assert.deepEqual(calls.map((call) => JSON.parse(call.function.arguments)), [{ city: 'Oslo' }, { city: 'Oslo' }]);
      assert.equal(new Set(calls.map((call) => call.id)).size, 2);
    });

    test('an image', async () => {
      const content = [
        { type: 'text', text: 'what is this?' },
        { type: 'image_url', image_url: { url: PIXEL } },
      ];
      assert.equal((await create(content)).choices[0].finish_reason, 'stop');
      const sent = (await gateway.last()).body.messages[0].content;
      if (translated) assert.deepEqual(sent[1].source, { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' });
      else assert.deepEqual(sent, content);
    });
  });

  describe(`${model}: errors`, () => {
    async function check(kind, status, word, promise) {
      const error = await promise().then(() => assert.fail('no error'), (error) => error);
      assert.equal(error.constructor, kind, String(error));
      assert.deepEqual([error.status, error.type, error.error.code], [status, word, status]);
      assert.match(error.requestID, REQUEST_ID);
      assert.equal(error.error.request_id, error.requestID);
      return error;
    }

    test('400', async () => {
      const call = () => client().chat.completions.create({ model, messages: [] });
      const error = await check(OpenAI.BadRequestError, 400, 'invalid_request_error', call);
      assert.match(error.message, /messages/);
    });

    test('401', async () => {
      const call = () => create('x', { key: 'tg_live_wrong' });
      await check(OpenAI.AuthenticationError, 401, 'authentication_error', call);
    });

    test('401 for a revoked key', async () => {
      const key = await gateway.issue();
      await create('x', { key });
      await gateway.revoke(key);
      await check(OpenAI.AuthenticationError, 401, 'authentication_error', () => create('x', { key }));
    });

    test('403 for a model and for an endpoint', async () => {
      for (const args of [['--models', hasty], ['--endpoints', 'messages']]) {
        const key = await gateway.issue(...args);
        await check(OpenAI.PermissionDeniedError, 403, 'permission_error', () => create('x', { key }));
      }
    });

    test('404 for a model and for a path', async () => {
      const calls = [
        () => create('x', { model: 'no-such' }),
        () => client().models.retrieve('no-such'),
        () => client().embeddings.create({ model: 'x', input: 'x' }),
      ];
      for (const call of calls) await check(OpenAI.NotFoundError, 404, 'not_found_error', call);
    });

    test('413', async () => {
      const call = () => create('x'.repeat(33 * 1024 * 1024));
      await check(OpenAI.APIError, 413, 'invalid_request_error', call);
    });

    test('429 with retry-after', async () => {
      const key = await gateway.issue('--plan', 'one');
      await create('x', { key });
      const error = await check(OpenAI.RateLimitError, 429, 'rate_limit_error', () => create('x', { key }));
      assert.ok(Number(error.headers.get('retry-after')) >= 1);
    });

    test('429 for a spent quota, not retried', async () => {
      const key = await gateway.issue('--plan', 'spent');
      await create('x', { key });
      const start = Date.now();
      const call = () => create('x', { key, options: { maxRetries: 2 } });
      await check(OpenAI.RateLimitError, 429, 'rate_limit_error', call);
      assert.ok(Date.now() - start < 2000);
    });

    test('500, whole and streamed, retried unless it is permanent', async () => {
      for (const stream of [false, true]) {
        const call = () => create('x\n#sim status=500', { stream });
        await check(OpenAI.InternalServerError, 500, 'upstream_error', call);
      }
      const { failed } = await gateway.stats();
      const options = { maxRetries: 1 };
      await create('x\n#sim status=503', { options }).catch(() => {});
      assert.equal((await gateway.stats()).failed - failed, 2);
      await create('x\n#sim status=404', { options }).catch(() => {});
      assert.equal((await gateway.stats()).failed - failed, 3);
    });

    test('504, whole and streamed', async () => {
      for (const stream of [false, true]) {
        const call = () => create('x\n#sim stall_head', { model: hasty, stream });
        await check(OpenAI.InternalServerError, 504, 'timeout_error', call);
      }
    });

    test('in mid-stream', async () => {
      const rows = { error_after: 'upstream_error', cut_after: 'upstream_error', stall_after: 'timeout_error' };
      for (const [how, type] of Object.entries(rows)) {
        const seen = [];
        const error = await (async () => {
          const more = { model: how === 'stall_after' ? hasty : model, stream: true };
          for await (const chunk of await create(`x\n#sim tokens=9 ${how}=3`, more)) seen.push(chunk);
        })().then(() => assert.fail('no error'), (error) => error);
        assert.ok(error instanceof OpenAI.APIError, String(error));
        assert.equal(error.type, type);
        assert.equal(error.error.request_id, seen[0].id);
      }
    });
  });
}

test('models: list and retrieve', async () => {
  const models = [];
  for await (const model of client().models.list()) models.push(model);
  assert.deepEqual(models.map((model) => model.id), ['small', 'large', 'newer', 'wide', 'hasty', 'hasty-large']);
  assert.deepEqual([models[0].object, models[0].owned_by, models[0].context_window], ['model', 'sim', 256_000]);
  assert.equal((await client().models.retrieve('large')).context_window, 1_000_000);
});
