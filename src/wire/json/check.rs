//! Checks documents, and picks members of them in the same pass.

use super::scan::{ScanError, Stop, Syntax, Token, Visitor, scan};
use super::unescape::eq_unescaped;
use super::view::Raw;
use crate::wire::Span;

/// A visitor that only checks that the document is valid.
#[derive(Copy, Clone, Debug, Default)]
pub struct Valid;

impl Visitor for Valid {
    fn token(&mut self, _: &[u8], _: Token, _: usize, _: Span) -> Result<(), Stop> {
        Ok(())
    }
}

/// Checks that `document` is one valid document.
pub fn check(document: &[u8]) -> Result<(), Syntax> {
    match scan(document, &mut Valid) {
        Err(ScanError::Syntax(syntax)) => Err(syntax),
        _ => Ok(()),
    }
}

/// Checks that `document` is one valid document and returns the same members as [`Raw::pick`], in one pass.
#[inline]
pub fn check_and_pick<'a, const N: usize>(
    document: &'a [u8],
    names: [&str; N],
) -> Result<[Option<Raw<'a>>; N], ScanError> {
    let mut spans = [Span::default(); N];
    let mut pick = Pick { names: &names, spans: &mut spans, which: N, start: 0 };
    scan(document, &mut pick)?;
    Ok(spans.map(|span| (!span.is_empty()).then(|| Raw::new(span.of(document)))))
}

/// Visitor that notes the spans of some members' values, except `null`.
struct Pick<'n> {
    names: &'n [&'n str],
    spans: &'n mut [Span],
    /// Index of the name of the current member.
    which: usize,
    /// Start of the container of its value.
    start: u32,
}

impl Visitor for Pick<'_> {
    #[inline(always)]
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        if depth != 1 {
            return Ok(());
        }
        let value = match token {
            Token::Key => {
                let name = span.of(buf);
                let found = self.names.iter().position(|wanted| eq_unescaped(name, wanted));
                self.which = found.unwrap_or(self.names.len());
                return Ok(());
            }
            Token::ObjectOpen | Token::ArrayOpen => {
                self.start = span.start;
                return Ok(());
            }
            Token::ObjectClose | Token::ArrayClose => Span { start: self.start, end: span.end },
            Token::String => Span { start: span.start - 1, end: span.end + 1 },
            Token::Null => Span::default(),
            Token::Number | Token::True | Token::False => span,
        };
        if let Some(place) = self.spans.get_mut(self.which) {
            *place = value;
        }
        Ok(())
    }
}
