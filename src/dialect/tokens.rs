//! A local estimate of tokens: one pass, a few bytes of state, no vocabulary.
//!
//! Owns the estimate. Must never be charged where an upstream has reported usage. Called for reservations, for
//! `message_start`, for usage that no upstream reported and for `POST /v1/messages/count_tokens`.

use crate::wire::json::{Run, runs};

/// Tokens that one image counts for; providers charge by area, 765 to 1600 for an ordinary one.
pub const IMAGE_TOKENS: u64 = 1000;
/// Tokens around one message: role and separators.
pub const MESSAGE_TOKENS: u64 = 4;

/// What a character belongs to.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Class {
    #[default]
    Nothing,
    Space,
    Newline,
    Lower,
    Upper,
    Digit,
    Mark,
    Ideograph,
    Foreign,
    Symbol,
}

/// Counts tokens of text fed in pieces. Memory does not grow.
#[derive(Copy, Clone, Debug, Default)]
pub struct Estimator {
    milli: u64,
    class: Class,
    len: u32,
}

impl Estimator {
    /// Nothing counted yet.
    pub fn new() -> Estimator {
        Estimator::default()
    }

    /// Counts text (UTF-8, cut between characters).
    pub fn feed(&mut self, text: &[u8]) {
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.char(c);
            }
        }
    }

    /// Counts the text that the inside of a valid JSON string stands for.
    pub fn feed_json(&mut self, raw: &[u8]) {
        for run in runs(raw) {
            match run {
                Run::Plain(bytes) => self.feed(bytes),
                Run::Char(c) => self.char(c),
            }
        }
    }

    /// Ends the word under way: what follows is other text.
    pub fn cut(&mut self) {
        self.milli += self.open_run();
        self.class = Class::Nothing;
        self.len = 0;
    }

    /// Counts whole tokens.
    pub fn add(&mut self, tokens: u64) {
        self.milli = self.milli.saturating_add(tokens.saturating_mul(1000));
    }

    /// Tokens counted so far, rounded up.
    pub fn tokens(&self) -> u64 {
        (self.milli.saturating_add(self.open_run())).div_ceil(1000)
    }

    fn char(&mut self, c: char) {
        let class = classify(c);
        let goes_on = class == self.class || (class == Class::Lower && self.class == Class::Upper && self.len == 1);
        if !goes_on {
            self.milli += self.open_run();
            self.len = 0;
        }
        self.class = class;
        self.len = self.len.saturating_add(1);
    }

    /// Thousandths of a token that the run under way is worth.
    fn open_run(&self) -> u64 {
        let len = u64::from(self.len);
        match self.class {
            Class::Nothing => 0,
            // A single space belongs to the word after it.
            Class::Space => u64::from(len > 1) * 1000,
            Class::Newline => 1000,
            Class::Lower => {
                if len <= 8 {
                    1000
                } else {
                    1000 + (len - 8) * 200
                }
            }
            Class::Upper => 1000 + len.saturating_sub(2) * 250,
            Class::Digit => len.div_ceil(3) * 1000,
            Class::Mark => 700 + (len - 1) * 300,
            Class::Ideograph => len * 750,
            Class::Foreign => 500 + len * 250,
            Class::Symbol => len * 2000,
        }
    }
}

fn classify(c: char) -> Class {
    match c {
        ' ' | '\t' => Class::Space,
        '\n' | '\r' => Class::Newline,
        'a'..='z' => Class::Lower,
        'A'..='Z' => Class::Upper,
        '0'..='9' => Class::Digit,
        '\0'..='\u{7f}' => Class::Mark,
        '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' => {
            Class::Ideograph
        }
        '\u{20000}'..='\u{3ffff}' => Class::Ideograph,
        '\u{2000}'..='\u{206f}' => Class::Mark,
        '\u{2100}'..='\u{2bff}' | '\u{1f000}'..='\u{1ffff}' => Class::Symbol,
        _ => Class::Foreign,
    }
}
