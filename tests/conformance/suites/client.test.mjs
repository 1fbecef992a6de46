// OpenAI's npm client, unchanged, over a real socket.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { z } from "zod";
import { zodResponseFormat } from "openai/helpers/zod";

const model = process.env.ENDPOINT_MODEL;
const client = new OpenAI({ maxRetries: 0 }); // address and token: OPENAI_BASE_URL, OPENAI_API_KEY
const greedy = { model, temperature: 0, max_completion_tokens: 12 };
const messages = [{ role: "user", content: "Name a river." }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("lists the models", async () => {
  const found = [];
  for await (const each of client.models.list()) found.push(each.id);
  assert.deepEqual(found, [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
});

test("chats", async () => {
  const answer = await client.chat.completions.create({ ...greedy, messages });
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.ok(answer.usage.completion_tokens <= 12);
  assert.equal(
    answer.usage.total_tokens,
    answer.usage.prompt_tokens + answer.usage.completion_tokens,
  );
});

test("streams what it says at once", async () => {
  const whole = await client.chat.completions.create({ ...greedy, messages });
  const stream = await client.chat.completions.create({
    ...greedy,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper puts the message together", async () => {
  const stream = client.chat.completions.stream({ ...greedy, messages });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas.join(""), final.choices[0].message.content);
});

test("completes", async () => {
  const answer = await client.completions.create({
    model,
    prompt: "The first three planets are",
    max_tokens: 8,
    temperature: 0,
    logprobs: 2,
    n: 2,
  });
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.choices[0].text, answer.choices[1].text);
  const { tokens, token_logprobs } = answer.choices[0].logprobs;
  assert.equal(tokens.join(""), answer.choices[0].text);
  assert.equal(tokens.length, token_logprobs.length);
});

test("a seed gives the same text again", async () => {
  const wish = { ...greedy, messages, temperature: 1, seed: 7 };
  const [one, two] = await Promise.all([1, 2].map(() => client.chat.completions.create(wish)));
  assert.equal(one.choices[0].message.content, two.choices[0].message.content);
  assert.equal(one.system_fingerprint, two.system_fingerprint);
});

test("an aborted stream ends", async () => {
  const stream = await client.chat.completions.create({
    ...greedy,
    max_completion_tokens: 500,
    messages,
    stream: true,
  });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
  assert.ok(chunks >= 3 && chunks < 500);
});

test("raises its own errors", async () => {
  const wrong = { ...greedy, messages, n: 99 };
  await assert.rejects(client.chat.completions.create(wrong), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.param, error.type], ["n", "invalid_request_error"]);
    return true;
  });
  await assert.rejects(
    client.chat.completions.create({ ...greedy, messages, model: "gpt-9" }),
    OpenAI.NotFoundError,
  );
  await assert.rejects(
    client.withOptions({ apiKey: "wrong" }).models.list(),
    OpenAI.AuthenticationError,
  );
  await assert.rejects(client.embeddings.create({ model, input: "a" }), OpenAI.NotFoundError);
});

test("a schema is kept to", async () => {
  const Answer = z.object({ colour: z.enum(["red", "green"]), certain: z.boolean() });
  const answer = await client.chat.completions.parse({
    ...greedy,
    max_completion_tokens: 60,
    messages: [{ role: "user", content: "Which colour has grass?" }],
    response_format: zodResponseFormat(Answer, "answer"),
  });
  assert.ok(Answer.safeParse(answer.choices[0].message.parsed).success);
});

test("a tool is called", async () => {
  const answer = await client.chat.completions.create({
    ...greedy,
    max_completion_tokens: 60,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [weather],
    tool_choice: "required",
    parallel_tool_calls: false,
  });
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  const [call] = choice.message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
});

test("the tool runner goes round", async () => {
  const cities = [];
  const runner = client.chat.completions.runTools({
    ...greedy,
    max_completion_tokens: 60,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [
      {
        type: "function",
        function: {
          ...weather.function,
          parse: JSON.parse,
          function: ({ city }) => {
            cities.push(city);
            return "sunny";
          },
        },
      },
    ],
    tool_choice: { type: "function", function: { name: "get_weather" } },
  });
  await runner.done();
  assert.equal(cities.length, 1);
});
