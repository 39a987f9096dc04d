//! Bytes with typed holes. A head, an answer or an event often repeats an earlier one except for a few values. It is
//! compared with that example instead of parsed, which takes a tenth of the work.
//!
//! Owns the comparison: all bytes outside the holes equal those of the example. Must never keep the content of a hole.
//! Its users decide what fits into a hole, so that a template accepts nothing that their parser would read differently:
//! `wire::head` for heads of requests, `dialect::replies` for complete answers, `dialect::stream` for events.

use super::Span;

/// An example without the contents of its holes. `PARTS` is at least the number of holes plus 1.
#[derive(Debug)]
pub struct BytesTemplate<H, const PARTS: usize> {
    /// Bytes that are kept before the example, those of the example outside its holes, and bytes kept behind it. Only
    /// those of the example are compared.
    bytes: Vec<u8>,
    /// Number of the first.
    kept: u16,
    /// Lengths of the parts outside the holes, each with the hole after it. The last part of the example has none.
    parts: [(u16, Option<H>); PARTS],
}

impl<H: Copy, const PARTS: usize> Default for BytesTemplate<H, PARTS> {
    fn default() -> Self {
        // No text can equal an example that lacks these bytes.
        BytesTemplate { bytes: Vec::new(), kept: 1, parts: [(0, None); PARTS] }
    }
}

impl<H: Copy, const PARTS: usize> BytesTemplate<H, PARTS> {
    /// Forgets the example and keeps the storage.
    pub fn forget(&mut self) {
        self.bytes.clear();
    }

    /// Learns an example, and keeps other bytes before it and behind it. `holes` are in order. There must be less than
    /// 64 KiB in total outside them.
    pub fn learn(&mut self, example: &[u8], holes: &[(Span, H)], [before, behind]: [&[u8]; 2]) {
        debug_assert!(holes.len() < PARTS && holes.is_sorted_by_key(|(span, _)| span.start));
        let hollow: usize = holes.iter().map(|(span, _)| span.len()).sum();
        self.bytes.clear();
        // Exactly the needed bytes: every running stream has a template.
        self.bytes.reserve_exact(before.len() + example.len() - hollow + behind.len());
        self.bytes.extend_from_slice(before);
        (self.kept, self.parts) = (before.len() as u16, [(0, None); PARTS]);
        let ends = holes.iter().map(|(span, hole)| (*span, Some(*hole)));
        let end = (Span::new(example.len(), example.len()), None);
        let mut from = 0;
        for (part, (span, hole)) in self.parts.iter_mut().zip(ends.chain([end])) {
            let same = &example[from..span.start as usize];
            self.bytes.extend_from_slice(same);
            (*part, from) = ((same.len() as u16, hole), span.end as usize);
        }
        self.bytes.extend_from_slice(behind);
    }

    /// Begins a comparison of the front of `buf` with the example.
    #[inline(always)]
    pub fn compare<'a>(&self, buf: &'a [u8]) -> Option<Comparison<'a, '_, H>> {
        let same = self.bytes.get(usize::from(self.kept)..)?;
        Some(Comparison { left: buf, same, parts: self.parts.iter() })
    }

    /// The bytes kept before the example, then the rest: those of the example outside its holes, and the bytes kept
    /// behind it.
    #[inline]
    pub fn split(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(usize::from(self.kept))
    }
}

/// A comparison between the front of a buffer and an example.
pub struct Comparison<'a, 't, H> {
    /// Bytes of the buffer that are still to be compared.
    pub left: &'a [u8],
    same: &'t [u8],
    parts: std::slice::Iter<'t, (u16, Option<H>)>,
}

impl<'a, H: Copy> Comparison<'a, '_, H> {
    /// Compares up to the next hole, or up to the end of the example if there is none. `None`: the bytes differ.
    #[inline(always)]
    pub fn next_hole(&mut self) -> Option<Option<H>> {
        let (len, hole) = self.parts.next()?;
        let (part, rest) = self.same.split_at_checked(usize::from(*len))?;
        (self.left, self.same) = (self.left.strip_prefix(part)?, rest);
        Some(*hole)
    }

    /// Takes the value in the hole, which has `len` bytes.
    #[inline(always)]
    pub fn fill(&mut self, len: usize) -> Option<&'a [u8]> {
        let value;
        (value, self.left) = self.left.split_at_checked(len)?;
        Some(value)
    }
}

/// The whole number without a leading zero at the front of `bytes`, of at most `digits_max` digits, and its length.
#[inline]
pub fn number(bytes: &[u8], digits_max: usize) -> Option<(u64, usize)> {
    let (mut value, mut end) = (0u64, 0);
    while let Some(digit) = bytes.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        end += 1;
    }
    (end > 0 && end <= digits_max && bytes[0] != b'0').then_some((value, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    /// Length of the text that fits the template "a 1 b 22 c", whose numbers are holes, and its numbers.
    fn fits(buf: &str) -> Option<(usize, Vec<u64>)> {
        let mut template = BytesTemplate::<char, 3>::default();
        assert!(template.compare(b"a").is_none(), "nothing is learned");
        let span = |range: Range<usize>| Span::new(range.start, range.end);
        template.learn(b"a 1 b 22 c", &[(span(2..3), 'x'), (span(6..8), 'y')], [b"ke", b"pt"]);
        assert_eq!(template.split(), (&b"ke"[..], &b"a  b  cpt"[..]));
        let mut numbers = Vec::new();
        let mut comparison = template.compare(buf.as_bytes())?;
        while let Some(hole) = comparison.next_hole()? {
            assert_eq!(hole, ['x', 'y'][numbers.len()]);
            let (value, len) = number(comparison.left, 3)?;
            numbers.push(value);
            comparison.fill(len)?;
        }
        Some((buf.len() - comparison.left.len(), numbers))
    }

    #[test]
    fn only_holes_may_differ() {
        assert_eq!(fits("a 123 b 4 c and more"), Some((11, vec![123, 4])));
        for other in ["", "a", "a 1 b 22", "a 1 b 22 d", "b 1 b 22 c", "a 01 b 2 c", "a 1234 b 2 c", "a  b 2 c"] {
            assert_eq!(fits(other), None, "{other}");
        }
    }
}
