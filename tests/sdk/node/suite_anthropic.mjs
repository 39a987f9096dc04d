// The official `@anthropic-ai/sdk` package, unmodified, at the messages endpoint: models behind an upstream of the same
// format, and translated ones.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Gateway, load, waitFor } from './gateway.mjs';

const { Anthropic } = load('@anthropic-ai/sdk');
const REQUEST_ID = /^req_[0-9a-f]{32}$/;
const WEATHER = {
  name: 'get_weather',
  description: 'The weather in a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

let gateway;
before(async () => {
  gateway = await Gateway.start();
});
after(async () => {
  assert.deepEqual(await gateway.stop(), [0, 0], 'gateway and provider end with code 0');
});

const client = (key, options = {}) =>
  new Anthropic({ apiKey: key ?? gateway.key, baseURL: gateway.url, maxRetries: 0, timeout: 60_000, ...options });
const user = (content) => [{ role: 'user', content }];

for (const [model, hasty] of [['large', 'hasty-large'], ['small', 'hasty']]) {
  const translated = model === 'small';
  const asked = (content, more = {}) => ({ model, max_tokens: 1000, messages: user(content), ...more });
  const create = (content, { key, options, ...more } = {}) => client(key, options).messages.create(asked(content, more));

  describe(`${model}: answers`, () => {
    test('whole', async () => {
      const answer = await create('one two\n#sim tokens=6', { system: 'be brief' });
      assert.match(answer.id, REQUEST_ID);
      assert.equal(answer._request_id, answer.id);
      assert.deepEqual([answer.type, answer.role, answer.model], ['message', 'assistant', model]);
      assert.equal(answer.stop_reason, 'end_turn');
      assert.equal(answer.content[0].text.split(' ').length, 6);
      assert.deepEqual([answer.usage.input_tokens, answer.usage.output_tokens], [6, 6]);
      const { system, messages } = (await gateway.last()).body;
      assert.equal(translated ? messages[0].content : system, 'be brief');
    });

    test('streamed', async () => {
      const events = [];
      for await (const event of await create('x\n#sim tokens=9', { stream: true })) events.push(event);
      const kinds = events.map((event) => event.type).filter((type) => type !== 'ping');
      assert.deepEqual(kinds.slice(0, 2), ['message_start', 'content_block_start']);
      assert.deepEqual(kinds.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
      assert.match(events[0].message.id, REQUEST_ID);
      assert.equal(events[0].message.model, model);
      assert.equal(kinds.filter((type) => type === 'content_block_delta').length, 9);
    });

    test('the stream helper accumulates', async () => {
      const stream = client().messages.stream(asked('größe 東京\n#sim echo'));
      let text = '';
      stream.on('text', (piece) => {
        text += piece;
      });
      const answer = await stream.finalMessage();
      assert.deepEqual([text, answer.content[0].text], ['größe 東京', 'größe 東京']);
      assert.deepEqual([answer.model, answer.stop_reason, answer.usage.output_tokens], [model, 'end_turn', 2]);
    });

    test('concurrent requests', async () => {
      const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => create(`${n}\n#sim echo`)));
      assert.deepEqual(answers.map((answer) => Number(answer.content[0].text)), [...Array(40).keys()]);
    });

    test('a stream that is aborted closes its upstream', async () => {
      const { aborted } = await gateway.stats();
      const stream = client().messages.stream(asked('x\n#sim tokens=100000 pace=100', { max_tokens: 100000 }));
      stream.once('text', () => stream.abort());
      await stream.done().catch(() => {});
      await waitFor('the upstream to be closed', async () => (await gateway.stats()).aborted > aborted);
    });
  });

  describe(`${model}: tools and images`, () => {
    test('a call and its loop', async () => {
      const first = await create('What about get_weather?', { tools: [WEATHER] });
      assert.equal(first.stop_reason, 'tool_use');
      const call = first.content.at(-1);
      assert.deepEqual([call.type, call.name, call.input], ['tool_use', 'get_weather', { city: 'Oslo' }]);
      const result = { type: 'tool_result', tool_use_id: call.id, content: '4 degrees' };
      const messages = [
        ...user('What about get_weather?'),
        { role: 'assistant', content: first.content },
        { role: 'user', content: [result] },
      ];
      const second = await client().messages.create({ model, max_tokens: 1000, tools: [WEATHER], messages });
      assert.equal(second.stop_reason, 'end_turn');
      const [, use, back] = (await gateway.last()).body.messages;
      const sent = translated
        ? [use.tool_calls[0].id, back.tool_call_id, back.content]
        : [use.content.at(-1).id, back.content[0].tool_use_id, back.content[0].content];
      assert.deepEqual(sent, [call.id, call.id, '4 degrees']);
    });

    test('parallel calls, streamed, by the helper', async () => {
      const stream = client().messages.stream(asked('x\n#sim tool calls=2', { tools: [WEATHER] }));
      const calls = (await stream.finalMessage()).content.filter((block) => block.type === 'tool_use');
      assert.deepEqual(calls.map((call) => call.input), [{ city: 'Oslo' }, { city: 'Oslo' }]);
      assert.equal(new Set(calls.map((call) => call.id)).size, 2);
    });

    test('an image', async () => {
      const content = [
        { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } },
        { type: 'text', text: 'what is this?' },
      ];
      assert.equal((await create(content)).stop_reason, 'end_turn');
      const sent = (await gateway.last()).body.messages[0].content;
      if (translated) assert.equal(sent[0].image_url.url, 'data:image/png;base64,iVBORw0KGgo=');
      else assert.deepEqual(sent, content);
    });
  });

  describe(`${model}: errors`, () => {
    async function check(kind, status, word, promise) {
      const error = await promise().then(() => assert.fail('no error'), (error) => error);
      assert.equal(error.constructor, kind, String(error));
      assert.deepEqual([error.status, error.error.type], [status, 'error']);
      assert.deepEqual([error.error.error.type, error.error.error.code], [word, status]);
      assert.match(error.requestID, REQUEST_ID);
      assert.equal(error.error.error.request_id, error.requestID);
      return error;
    }

    test('400', async () => {
      const call = () => create('x', { max_tokens: 0 });
      const error = await check(Anthropic.BadRequestError, 400, 'invalid_request_error', call);
      assert.match(error.message, /max_tokens/);
    });

    test('401', async () => {
      const call = () => create('x', { key: 'tg_live_wrong' });
      await check(Anthropic.AuthenticationError, 401, 'authentication_error', call);
    });

    test('401 for a revoked key', async () => {
      const key = await gateway.issue();
      await create('x', { key });
      await gateway.revoke(key);
      await check(Anthropic.AuthenticationError, 401, 'authentication_error', () => create('x', { key }));
    });

    test('403 for a model and for an endpoint', async () => {
      for (const args of [['--models', hasty], ['--endpoints', 'chat']]) {
        const key = await gateway.issue(...args);
        await check(Anthropic.PermissionDeniedError, 403, 'permission_error', () => create('x', { key }));
      }
    });

    test('404 for a model and for a path', async () => {
      await check(Anthropic.NotFoundError, 404, 'not_found_error', () => create('x', { model: 'no-such' }));
      const error = await client().post('/v1/no/such/path', { body: {} }).then(() => assert.fail('no error'), (e) => e);
      assert.equal(error.constructor, Anthropic.NotFoundError);
      assert.match(error.requestID, REQUEST_ID);
    });

    test('413', async () => {
      const call = () => create('x'.repeat(33 * 1024 * 1024));
      const error = await call().then(() => assert.fail('no error'), (error) => error);
      assert.ok(error instanceof Anthropic.APIError, String(error));
      assert.deepEqual([error.status, error.error.error.type], [413, 'invalid_request_error']);
      assert.match(error.requestID, REQUEST_ID);
    });

    test('429 with retry-after', async () => {
      const key = await gateway.issue('--plan', 'one');
      await create('x', { key });
      const error = await check(Anthropic.RateLimitError, 429, 'rate_limit_error', () => create('x', { key }));
      assert.ok(Number(error.headers.get('retry-after')) >= 1);
    });

    test('429 for a spent quota, not retried', async () => {
      const key = await gateway.issue('--plan', 'spent');
      await create('x', { key });
      const start = Date.now();
      const call = () => create('x', { key, options: { maxRetries: 2 } });
      await check(Anthropic.RateLimitError, 429, 'rate_limit_error', call);
      assert.ok(Date.now() - start < 2000);
    });

    test('500, whole and streamed', async () => {
      for (const stream of [false, true]) {
        const call = () => create('x\n#sim status=529', { stream });
        await check(Anthropic.InternalServerError, 500, 'upstream_error', call);
      }
    });

    test('504, whole and streamed', async () => {
      for (const stream of [false, true]) {
        const call = () => create('x\n#sim stall_head', { model: hasty, stream });
        const error = await call().then(() => assert.fail('no error'), (error) => error);
        assert.ok(error instanceof Anthropic.InternalServerError, String(error));
        assert.deepEqual([error.status, error.error.error.type], [504, 'timeout_error']);
        assert.match(error.requestID, REQUEST_ID);
      }
    });

    test('in mid-stream', async () => {
      const rows = { error_after: 'upstream_error', cut_after: 'upstream_error', stall_after: 'timeout_error' };
      for (const [how, type] of Object.entries(rows)) {
        const seen = [];
        const error = await (async () => {
          const more = { model: how === 'stall_after' ? hasty : model, stream: true };
          for await (const event of await create(`x\n#sim tokens=9 ${how}=3`, more)) seen.push(event);
        })().then(() => assert.fail('no error'), (error) => error);
        assert.ok(error instanceof Anthropic.APIError, String(error));
        assert.equal(error.type, type);
        assert.equal(error.error.error.request_id, seen[0].message.id);
      }
    });
  });
}

describe('models', () => {
  test('list and retrieve', async () => {
    const models = [];
    for await (const model of client().models.list({ limit: 1000 })) models.push(model);
    assert.deepEqual(models.map((model) => model.id), ['small', 'large', 'newer', 'wide', 'hasty', 'hasty-large']);
    assert.deepEqual([models[1].type, models[1].display_name], ['model', 'Large One']);
    assert.equal((await client().models.retrieve('small')).display_name, 'Small One');
  });

  test('tokens are counted', async () => {
    const count = await client().messages.countTokens({ model: 'large', messages: user('one two three four') });
    assert.ok(count.input_tokens > 0);
  });
});
