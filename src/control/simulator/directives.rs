//! The `#sim` line of a request: contents and faults of the answer. Pure; called by `provider::ask`. An unknown word is
//! an error, so that a test with a typo in it fails.

/// A value of a directive, read from the text after `=`.
trait DirectiveValue: Sized {
    fn read(text: Option<&str>) -> Option<Self>;
}

impl DirectiveValue for bool {
    fn read(text: Option<&str>) -> Option<bool> {
        text.is_none().then_some(true)
    }
}

impl DirectiveValue for u64 {
    fn read(text: Option<&str>) -> Option<u64> {
        text?.parse().ok()
    }
}

/// A status.
impl DirectiveValue for u16 {
    fn read(text: Option<&str>) -> Option<u16> {
        text?.parse().ok().filter(|status| (200..=599).contains(status))
    }
}

impl DirectiveValue for String {
    fn read(text: Option<&str>) -> Option<String> {
        text.map(str::to_owned)
    }
}

impl<V: DirectiveValue> DirectiveValue for Option<V> {
    fn read(text: Option<&str>) -> Option<Option<V>> {
        V::read(text).map(Some)
    }
}

/// Makes the struct and its parser from one table. The comments are the rows of the manual's table.
macro_rules! directives {
    ($($(#[$effect:meta])* $name:ident: $value:ty,)*) => {
        /// Directives of one request to the simulated provider.
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        #[allow(missing_docs)] // some share the comment of the one before them
        pub struct Directives {
            $($(#[$effect])* pub $name: $value,)*
        }

        impl Directives {
            /// Sets one; `None`: its name is unknown, or its value is wrong.
            fn set(&mut self, name: &str, text: Option<&str>) -> Option<()> {
                match name {
                    $(stringify!($name) => self.$name = DirectiveValue::read(text)?,)*
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

directives! {
    /// `tokens=N`: a text of N words (default 12, at most 1000000)
    tokens: Option<u64>,
    /// `echo`: the user's own text, without the line of directives
    echo: bool,
    /// `report`: once no more tools are called: the texts of all tool results so far, in order
    report: bool,
    /// `think=N`: N words of reasoning come first (`reasoning_content`; a thinking block with its signature)
    think: Option<u64>,
    /// `refuse`: the answer is a refusal: chat in `refusal` with `content_filter`, messages with `stop_details`
    refuse: bool,
    /// `big=BYTES`: a text of one token of that many bytes (at most 64 MiB)
    big: Option<u64>,
    /// `pace=N`: N tokens per second, 0 = no limit; a whole answer takes as long as its tokens
    pace: Option<u64>,
    /// `delay=MS`: milliseconds before the head, of an error as well
    delay: u64,
    /// `tool`, `tool=NAME`: calls the first tool of the request, or that one; without `tools` in the request it is text
    tool: Option<String>,
    /// `calls=N` `args=JSON`: with `tool`: N calls in parallel; with these arguments
    calls: Option<u64>,
    args: Option<String>,
    /// `signature=N`: characters of a thought signature (default 44, at most 1048576)
    signature: Option<u64>,
    /// `turns=N`: calls tools again after results, until N answers have called some
    turns: Option<u64>,
    /// `cached=N` `written=N`: number of prompt tokens that are reported as read from or written to a cache
    cached: u64,
    written: u64,
    /// `status=N`: an error in the API's format; `message=some_words`, `retry_after=N`; `close` closes the connection
    status: Option<u16>,
    message: Option<String>,
    retry_after: Option<u64>,
    /// `html`: an error page instead (502, or the `status` given, also 200)
    html: bool,
    /// `stall_head`: never sends a head
    stall_head: bool,
    /// `stall_after=N`: nothing more after N tokens (whole: after N bytes of the body)
    stall_after: Option<u64>,
    /// `ping=MS`: while stalled, a ping (messages) or comment (chat) at this interval in milliseconds
    ping: Option<u64>,
    /// `cut_after=N` `reset_after=N`: the connection ends (FIN, RST) after N tokens (whole: N bytes)
    cut_after: Option<u64>,
    reset_after: Option<u64>,
    /// `error_after=N`: a stream's error event after N tokens, with `message`; 0 = as the first event
    error_after: Option<u64>,
    /// `no_usage`: no usage at all
    no_usage: bool,
    /// `no_finish`: a stream ends without its finish reason; `no_done`: without `[DONE]` or `message_stop`
    no_finish: bool,
    no_done: bool,
    /// `hang`: the connection stays open after a stream's last event, the body without its end
    hang: bool,
    /// `close`: without `status`: the end of the connection is the end of the body (no length, no chunks)
    close: bool,
    /// `bare`: chat: without `object`, `created`, `system_fingerprint`; whole: also without `usage`
    bare: bool,
    /// `garbage`: text events, or the whole body, are broken JSON
    garbage: bool,
    /// `plain`: a whole answer although a stream was requested
    plain: bool,
    /// `hint`: a 103 before the head
    hint: bool,
    /// `encoding=NAME`: claims this `content-encoding`
    encoding: Option<String>,
    /// `crlf`: a stream's lines end in CRLF
    crlf: bool,
    /// `drip=N`: at most N bytes per write
    drip: Option<u64>,
}

impl Directives {
    /// Parses the words between `#sim` and the end of its line. Returns the defaults if the text has no such line.
    pub fn parse(text: &str) -> Result<Directives, String> {
        let mut all = Directives::default();
        let Some((_, after)) = text.split_once("#sim") else { return Ok(all) };
        for word in after.lines().next().unwrap_or_default().split_whitespace() {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            // Without a name: the first tool.
            let value = value.or((name == "tool").then_some(""));
            all.set(name, value).ok_or_else(|| format!("#sim: unknown word or wrong value: `{word}`"))?;
        }
        all.message = all.message.map(|words| words.replace('_', " "));
        Ok(all)
    }

    /// True if the answer is an error.
    pub fn fails(&self) -> bool {
        self.html || self.status.is_some_and(|status| status != 200)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_to_the_end_of_the_line() {
        let all = Directives::parse("Hello.\n#sim tokens=5 stall_head tool tool=x message=too_bad\nno_done tokens=9");
        let expected = Directives {
            tokens: Some(5),
            stall_head: true,
            tool: Some("x".into()),
            message: Some("too bad".into()),
            ..Directives::default()
        };
        assert_eq!(all, Ok(expected));
        assert_eq!(Directives::parse("nothing here"), Ok(Directives::default()));
    }

    #[test]
    fn unknown_directive_is_an_error() {
        for text in ["#sim tokns=5", "#sim tokens=x", "#sim stall", "#sim status=99", "#sim tokens", "#sim html=1"] {
            assert!(Directives::parse(text).is_err(), "{text}");
        }
    }
}
