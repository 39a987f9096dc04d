//! Answers of a healthy provider in both API formats, split at the points where faults occur.

/// Text of every healthy answer.
pub const TEXT: &str = "one two three";
/// Prompt tokens and completion tokens, as every healthy answer reports them.
pub const TOKENS: (u64, u64) = (7, 3);

/// API format of a provider.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    Chat,
    Messages,
}

impl Shape {
    pub const ALL: [Shape; 2] = [Shape::Chat, Shape::Messages];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Chat => "chat",
            Shape::Messages => "messages",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Shape::Chat => "/v1/chat/completions",
            Shape::Messages => "/v1/messages",
        }
    }
}

/// Returns the text of a long stream.
pub fn long_text() -> String {
    (0..100).map(|n| format!("word{n} ")).collect()
}

/// Returns a complete answer that contains `text`.
pub fn whole(shape: Shape, text: &str) -> String {
    let (input, output) = TOKENS;
    match shape {
        Shape::Chat => format!(
            "{{\"id\":\"up-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"up\",\"choices\":[{{\"index\":0,\
             \"finish_reason\":\"stop\",\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}}}}],\"usage\":\
             {{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{}}}}}",
            input + output
        ),
        Shape::Messages => format!(
            "{{\"id\":\"up-1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"up\",\"content\":[{{\"type\":\
             \"text\",\"text\":\"{text}\"}}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\"usage\":\
             {{\"input_tokens\":{input},\"output_tokens\":{output}}}}}"
        ),
    }
}

/// A stream, in the pieces that the faults use.
pub struct Stream {
    /// Events before the first token; empty in the Chat Completions format.
    pub opening: String,
    /// Events, one per token.
    pub tokens: Vec<String>,
    /// The events with the finish reason and the usage.
    pub finish: String,
    /// The event that ends the stream.
    pub done: String,
}

impl Stream {
    /// Returns the complete stream as a client receives it that has not requested the usage chunk of Chat Completions.
    pub fn seen(&self, id: &str, model: &str) -> String {
        let finish: String =
            self.finish.split_inclusive("\n\n").filter(|event| !event.contains("[],\"usage\"")).collect();
        let all = self.part(self.tokens.len()) + &finish + &self.done;
        all.replace("\"id\":\"up-1\"", &format!("\"id\":\"{id}\""))
            .replace("\"model\":\"up\"", &format!("\"model\":\"{model}\""))
    }

    /// Returns the complete stream.
    pub fn all(&self) -> String {
        self.part(self.tokens.len()) + &self.finish + &self.done
    }

    /// Returns the opening and this number of tokens.
    pub fn part(&self, tokens: usize) -> String {
        self.opening.clone() + &self.tokens[..tokens].concat()
    }
}

/// Returns a streamed answer with the words of `text`.
pub fn stream(shape: Shape, text: &str) -> Stream {
    let words = text.split_inclusive(' ');
    match shape {
        Shape::Chat => Stream {
            opening: String::new(),
            tokens: words.map(|word| chunk(&format!("{{\"content\":\"{word}\"}}"), "null")).collect(),
            finish: chunk("{}", "\"stop\"") + &usage_chunk(),
            done: "data: [DONE]\n\n".into(),
        },
        Shape::Messages => messages_stream(words),
    }
}

fn chunk(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"up-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"up\",\"choices\":\
         [{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn usage_chunk() -> String {
    let (input, output) = TOKENS;
    format!(
        "data: {{\"id\":\"up-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"up\",\"choices\":[],\
         \"usage\":{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{}}}}}\n\n",
        input + output
    )
}

fn messages_stream<'a>(words: impl Iterator<Item = &'a str>) -> Stream {
    let (input, output) = TOKENS;
    let event = |name: &str, rest: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n");
    let start = format!(
        ",\"message\":{{\"id\":\"up-1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"up\",\"content\":[],\
         \"stop_reason\":null,\"stop_sequence\":null,\"usage\":{{\"input_tokens\":{input},\"output_tokens\":1}}}}"
    );
    let delta = |word| format!(",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{word}\"}}");
    let stop = format!(
        ",\"delta\":{{\"stop_reason\":\"end_turn\",\"stop_sequence\":null}},\"usage\":{{\"output_tokens\":{output}}}"
    );
    Stream {
        opening: event("message_start", &start)
            + &event("content_block_start", ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}"),
        tokens: words.map(|word| event("content_block_delta", &delta(word))).collect(),
        finish: event("content_block_stop", ",\"index\":0") + &event("message_delta", &stop),
        done: event("message_stop", ""),
    }
}

/// Returns an error in the API format.
pub fn error(shape: Shape, message: &str) -> String {
    match shape {
        Shape::Chat => format!("{{\"error\":{{\"message\":\"{message}\",\"type\":\"server_error\",\"code\":null}}}}"),
        Shape::Messages => {
            format!("{{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\"message\":\"{message}\"}}}}")
        }
    }
}

/// Returns an error as an event of a stream.
pub fn error_event(shape: Shape, message: &str) -> String {
    match shape {
        Shape::Chat => format!("data: {}\n\n", error(shape, message)),
        Shape::Messages => format!("event: error\ndata: {}\n\n", error(shape, message)),
    }
}

/// Returns a keep-alive event, which is not an answer.
pub fn ping(shape: Shape) -> &'static str {
    match shape {
        Shape::Chat => ": still here\n\n",
        Shape::Messages => "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    }
}
