// The npm package "openai".
const assert = require('node:assert');
const { test } = require('node:test');
const { OpenAI } = require('openai');

const url = process.env.CLIENTS_SERVER;
const model = 'smollm2';
const messages = [{ role: 'user', content: 'Name three colours.' }];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });

test('chat, whole and streamed', async () => {
  const asked = { model, messages, max_tokens: 12, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  assert.ok(whole.choices[0].message.content);
  let text = '';
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? '';
  }
  assert.strictEqual(text, whole.choices[0].message.content);
});

test('completions, embeddings, models', async () => {
  const answer = await client.completions.create({ model, prompt: 'The capital of France is', max_tokens: 5, temperature: 0 });
  assert.match(answer.choices[0].text, /Paris/);
  const vectors = await client.embeddings.create({ model, input: ['a cat', 'tax law'] });
  assert.strictEqual(vectors.data.length, 2);
  assert.ok(vectors.data[0].embedding.length > 100);
  assert.strictEqual((await client.models.list()).data[0].id, model);
});

test('responses, whole and streamed', async () => {
  const asked = { model, input: 'Count to five.', max_output_tokens: 12, temperature: 0 };
  const whole = await client.responses.create(asked);
  let text = '';
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  assert.strictEqual(text, whole.output_text);
});

test('a stream that is given up, and errors of its own', async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 200, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break;
  }
  await assert.rejects(client.chat.completions.create({ model: 'huge', messages }), OpenAI.NotFoundError);
});
