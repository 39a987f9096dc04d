//! A local estimate of tokens: one pass, a few bytes of state, no vocabulary.
//!
//! Owns the estimate. Must never be charged where an upstream has reported usage. Called for reservations, for
//! `message_start`, for usage that no upstream reported and for `POST /v1/messages/count_tokens`.
//!
//! Every byte costs a number of tenths of a token that follows from it and the byte before it alone. So the estimate
//! does not depend on how a text is cut into pieces, and the compiler makes sixteen bytes at once of the loop: about
//! three instructions per byte. A walk from character to character took three quarters of a request's instructions.

/// Tokens that one image counts for; providers charge by area, 765 to 1600 for an ordinary one.
pub const IMAGE_TOKENS: u64 = 1000;
/// Tokens around one message: role and separators.
pub const MESSAGE_TOKENS: u64 = 4;

/// Bytes looked at together.
const LANES: usize = 16;
/// Costs nothing after anything: fills up the last block.
const FILLER: u8 = 0;
/// Tenths by which the four digits of an escape such as `\u00e9` are counted too high on the average.
const HEX_EXCESS: u64 = 22;

/// Counts tokens of text fed in pieces. Memory does not grow.
#[derive(Copy, Clone, Debug, Default)]
pub struct Estimator {
    tenths: u64,
    /// Escapes with hexadecimal digits.
    hex: u64,
    /// The byte before; 0 where a text begins.
    last: u8,
}

impl Estimator {
    /// Nothing counted yet.
    pub fn new() -> Estimator {
        Estimator::default()
    }

    /// Counts the text that the inside of a valid JSON string stands for, or a number as it is written.
    pub fn feed_json(&mut self, raw: &[u8]) {
        let Some(last) = raw.last() else { return };
        // Each byte stands in `new` beside the one before it in `old`.
        let (head, rest) = raw.split_at(raw.len().min(LANES));
        let mut old = [self.last; LANES];
        old[1..head.len()].copy_from_slice(&head[..head.len() - 1]);
        let mut lanes = Lanes::default();
        lanes.add(&old, &padded(head));
        let (old, old_rest) = raw[head.len() - 1..][..rest.len()].as_chunks::<LANES>();
        let (new, new_rest) = rest.as_chunks::<LANES>();
        for (old, new) in old.chunks(BLOCKS).zip(new.chunks(BLOCKS)) {
            // What sixteen lanes of a byte each can hold is known, so they are summed up once for several blocks.
            self.take(&mut lanes);
            for (old, new) in old.iter().zip(new) {
                lanes.add(old, new);
            }
        }
        if !new_rest.is_empty() {
            self.take(&mut lanes);
            lanes.add(&padded(old_rest), &padded(new_rest));
        }
        self.take(&mut lanes);
        self.last = *last;
    }

    fn take(&mut self, lanes: &mut Lanes) {
        let sum = |lanes: &[u8; LANES]| u64::from(lanes.iter().map(|lane| u16::from(*lane)).sum::<u16>());
        self.tenths = self.tenths.saturating_add(sum(&lanes.tenths));
        self.hex += sum(&lanes.hex);
        *lanes = Lanes::default();
    }

    /// Ends the word under way: what follows is other text.
    pub fn cut(&mut self) {
        self.last = 0;
    }

    /// Counts whole tokens.
    pub fn add(&mut self, tokens: u64) {
        self.tenths = self.tenths.saturating_add(tokens.saturating_mul(10));
    }

    /// Tokens counted so far, rounded up.
    pub fn tokens(&self) -> u64 {
        self.tenths.saturating_sub(self.hex * HEX_EXCESS).div_ceil(10)
    }
}

fn padded(bytes: &[u8]) -> [u8; LANES] {
    let mut all = [FILLER; LANES];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Tenths of a token, and escapes that begin hexadecimal digits, by the place of their bytes in a block.
#[derive(Default)]
struct Lanes {
    tenths: [u8; LANES],
    hex: [u8; LANES],
}

impl Lanes {
    /// Sixteen bytes, each after the one in `old`. Nearly all text is ASCII, for which half of the questions fall away.
    #[inline(always)]
    fn add(&mut self, old: &[u8; LANES], new: &[u8; LANES]) {
        if old.is_ascii() && new.is_ascii() {
            self.each(old, new, ascii_cost);
        } else {
            self.each(old, new, cost);
        }
    }

    #[inline(always)]
    fn each(&mut self, old: &[u8; LANES], new: &[u8; LANES], cost: impl Fn(u8, u8) -> u8) {
        for lane in 0..LANES {
            let (p, x) = (old[lane], new[lane]);
            self.tenths[lane] = self.tenths[lane].wrapping_add(cost(p, x));
            self.hex[lane] = self.hex[lane].wrapping_add(u8::from((p == b'\\') & (x == b'u')));
        }
    }
}

/// Tenths of a token of byte `x` after byte `p`. Without branches, so that it is done for many bytes at once.
///
/// A word is about one token, a long one more; digits and marks go in clusters; an escape is mostly a line feed or a
/// quotation mark; ideographs are a token or less, letters of other scripts go by threes, pictures take two.
#[inline(always)]
fn cost(p: u8, x: u8) -> u8 {
    let foreign = (0xc0..0xe0).contains(&x) & (p < 0x80);
    let high = u8::from(x >= 0x80);
    let within = u8::from(p < 0x80) | u8::from(!is_letter(x));
    // Of a letter after a character that is not ASCII, the cost of a word's beginning is taken off again.
    ascii_cost(p, x) * (1 - high) - 5 * (1 - within)
        + 3 * u8::from(foreign)
        + 3 * u8::from(x >= 0xc0)
        + 5 * u8::from(x >= 0xe0)
        + 12 * u8::from(x >= 0xf0)
}

/// The same where both bytes are ASCII.
#[inline(always)]
fn ascii_cost(p: u8, x: u8) -> u8 {
    let escaped = p == b'\\';
    let (letter, after_letter) = (is_letter(x), is_letter(p));
    let (sign, after_sign) = (is_sign(x) & !letter, is_sign(p) & !after_letter);
    let camel = after_letter & (p & !x & 0x20 != 0);
    let word = letter & ((!after_letter & !escaped) | camel);
    let cluster = sign & !after_sign & !escaped;
    u8::from(letter)
        + 5 * u8::from(word)
        + 4 * (u8::from(sign) + u8::from(cluster))
        + 10 * u8::from((x == b'\\') & !escaped)
        + u8::from((x == b' ') & (p == b' '))
}

/// The most that [`cost`] gives.
const COST_MAX: usize = 20;
/// Blocks whose costs fit the lanes together.
const BLOCKS: usize = 255 / COST_MAX;

#[inline(always)]
fn is_letter(byte: u8) -> bool {
    (byte | 0x20).wrapping_sub(b'a') < 26
}

/// Visible ASCII but the backslash, which is an escape.
#[inline(always)]
fn is_sign(byte: u8) -> bool {
    (byte.wrapping_sub(0x21) < 0x5e) & (byte != b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> u64 {
        let mut estimator = Estimator::new();
        estimator.feed_json(text.as_bytes());
        estimator.tokens()
    }

    #[test]
    fn the_estimate_does_not_depend_on_how_a_text_is_cut() {
        let text = "fn naïveCase(a: u32) {\\n    return \\\"x\\\" + 1234567; // 你好 мир \\u00e9 🦀\\n}".as_bytes();
        let mut whole = Estimator::new();
        whole.feed_json(text);
        for size in 1..40 {
            let mut pieces = Estimator::new();
            text.chunks(size).for_each(|piece| pieces.feed_json(piece));
            assert_eq!(pieces.tokens(), whole.tokens(), "pieces of {size}");
        }
    }

    #[test]
    fn estimates_lie_near_what_tokenizers_count() {
        // Counts of a common vocabulary (cl100k) for the decoded text.
        let known = [
            ("The heron stands in the shallow water and waits; it is patient, grey and exact.", 18),
            ("Please summarise the attached report in three short sentences.", 11),
            ("for (let i = 0; i < items.length; i++) {\\n  total += items[i].price;\\n}", 25),
            ("internationalization", 2),
            ("1234567", 3),
            ("你好，世界", 5),
            ("Быстрая лисица", 6),
        ];
        for (text, tokens) in known {
            let got = count(text);
            assert!(got * 2 >= tokens && got <= tokens * 2, "{text}: {got} for {tokens}");
        }
    }

    #[test]
    fn the_lanes_hold_what_is_summed_up_at_once() {
        let most = (0..=255).flat_map(|p| (0..=255).map(move |x| usize::from(cost(p, x)))).max();
        assert_eq!(most, Some(COST_MAX));
        assert_eq!(count(&"\u{1f980}".repeat(1000)), 2000);
    }

    #[test]
    fn an_escaped_text_is_not_estimated_many_times_higher_than_the_same_in_the_clear() {
        let (clear, escaped) = ("你好世界".repeat(20), "\\u4f60\\u597d\\u4e16\\u754c".repeat(20));
        assert!(count(&escaped) < 2 * count(&clear), "{} {}", count(&escaped), count(&clear));
        assert!(count(&escaped) > count(&clear) / 2);
    }

    #[test]
    fn what_is_cut_does_not_join_and_nothing_costs_nothing() {
        assert_eq!(count(""), 0);
        let (mut joined, mut apart) = (Estimator::new(), Estimator::new());
        for word in ["herons", "wait", "here"] {
            joined.feed_json(word.as_bytes());
            apart.feed_json(word.as_bytes());
            apart.cut();
        }
        assert!(apart.tokens() > joined.tokens());
        apart.add(3);
        assert_eq!(apart.tokens(), 3 + 3);
    }
}
