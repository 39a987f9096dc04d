//! The `#sim` line of a request: contents and faults of the answer. Pure; called by `provider::ask`. An unknown word is
//! an error, so that a test with a typo in it fails.

/// Directives of one request to the simulated provider. The documentation of [`crate::simulator`] has a table of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names are the words of the table
pub struct Directives {
    pub tokens: Option<u64>,
    pub pace: Option<u64>,
    pub echo: bool,
    pub think: Option<u64>,
    pub report: bool,
    pub refuse: bool,
    pub big: Option<u64>,
    pub tool: Option<String>,
    pub calls: Option<u64>,
    pub turns: Option<u64>,
    pub signature: Option<u64>,
    pub args: Option<String>,
    pub cached: u64,
    pub written: u64,
    pub delay: u64,
    pub status: Option<u16>,
    pub message: Option<String>,
    pub html: bool,
    pub retry_after: Option<u64>,
    pub stall_head: bool,
    pub stall_after: Option<u64>,
    pub ping: Option<u64>,
    pub cut_after: Option<u64>,
    pub reset_after: Option<u64>,
    pub error_after: Option<u64>,
    pub no_usage: bool,
    pub no_done: bool,
    pub no_finish: bool,
    pub hang: bool,
    pub close: bool,
    pub bare: bool,
    pub garbage: bool,
    pub plain: bool,
    pub hint: bool,
    pub encoding: Option<String>,
    pub crlf: bool,
    pub drip: Option<u64>,
}

impl Directives {
    /// Parses the words between `#sim` and the end of its line. Returns the defaults if the text has no such line.
    pub fn parse(text: &str) -> Result<Directives, String> {
        let mut all = Directives::default();
        let Some((_, after)) = text.split_once("#sim") else { return Ok(all) };
        for word in after.lines().next().unwrap_or_default().split_whitespace() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let known = match value {
                Some(value) => all.set(name, value)?,
                None => all.switch(name),
            };
            if !known {
                return Err(format!("#sim: unknown word `{word}`"));
            }
        }
        Ok(all)
    }

    /// True if the answer is an error.
    pub fn fails(&self) -> bool {
        self.html || self.status.is_some_and(|status| status != 200)
    }

    fn switch(&mut self, name: &str) -> bool {
        let flag = match name {
            "echo" => &mut self.echo,
            "report" => &mut self.report,
            "refuse" => &mut self.refuse,
            "html" => &mut self.html,
            "stall_head" => &mut self.stall_head,
            "no_usage" => &mut self.no_usage,
            "no_done" => &mut self.no_done,
            "no_finish" => &mut self.no_finish,
            "hang" => &mut self.hang,
            "close" => &mut self.close,
            "bare" => &mut self.bare,
            "garbage" => &mut self.garbage,
            "plain" => &mut self.plain,
            "hint" => &mut self.hint,
            "crlf" => &mut self.crlf,
            "tool" => {
                self.tool = Some(String::new());
                return true;
            }
            _ => return false,
        };
        *flag = true;
        true
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "tool" => self.tool = Some(value.to_owned()),
            "args" => self.args = Some(value.to_owned()),
            "message" => self.message = Some(value.replace('_', " ")),
            "encoding" => self.encoding = Some(value.to_owned()),
            "status" => self.status = Some(status(value)?),
            "cached" => self.cached = number(name, value)?,
            "written" => self.written = number(name, value)?,
            "delay" => self.delay = number(name, value)?,
            _ => {
                let slot = match name {
                    "tokens" => &mut self.tokens,
                    "pace" => &mut self.pace,
                    "big" => &mut self.big,
                    "calls" => &mut self.calls,
                    "turns" => &mut self.turns,
                    "signature" => &mut self.signature,
                    "think" => &mut self.think,
                    "retry_after" => &mut self.retry_after,
                    "stall_after" => &mut self.stall_after,
                    "ping" => &mut self.ping,
                    "cut_after" => &mut self.cut_after,
                    "reset_after" => &mut self.reset_after,
                    "error_after" => &mut self.error_after,
                    "drip" => &mut self.drip,
                    _ => return Ok(false),
                };
                *slot = Some(number(name, value)?);
            }
        }
        Ok(true)
    }
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("#sim: {name} needs a whole number"))
}

fn status(value: &str) -> Result<u16, String> {
    value.parse().ok().filter(|code| (200..=599).contains(code)).ok_or_else(|| "#sim: status is 200 to 599".to_owned())
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
