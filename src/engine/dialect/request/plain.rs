//! The most common message, with a role and a text only, recognised by its bytes.
//!
//! Owns the two forms in which JSON writers produce it. Must never accept a message that the scanner reads differently.
//! Called by the scan of a request, and by a translation, which knows from the scan where texts end.

use crate::wire::Span;

/// Beginning of such a message: the bytes before its role, and between role and text.
struct PlainForm {
    role: &'static [u8],
    content: &'static [u8],
}

const FORMS: [PlainForm; 2] = [
    PlainForm { role: b"{\"role\":\"", content: b"\",\"content\":\"" },
    PlainForm { role: b"{\"role\": \"", content: b"\", \"content\": \"" },
];

/// A message of the user, the assistant or the system. Both spans are between the quotes.
pub(crate) struct PlainMessage {
    pub(crate) role: Span,
    pub(crate) text: Span,
}

impl PlainMessage {
    /// Reads the message at `at`. `end_of` returns the end of the valid string whose inside begins at an offset.
    #[inline(always)]
    pub(crate) fn at(buf: &[u8], at: usize, end_of: impl FnOnce(usize) -> Option<usize>) -> Option<PlainMessage> {
        let form = FORMS.iter().find(|form| buf[at..].starts_with(form.role))?;
        let role = at + form.role.len();
        let length = match buf[role..] {
            [b'u', b's', b'e', b'r', b'"', ..] => 4,
            [b's', b'y', b's', b't', b'e', b'm', b'"', ..] => 6,
            [b'a', b's', b's', b'i', b's', b't', b'a', b'n', b't', b'"', ..] => 9,
            _ => return None,
        };
        if !buf[role + length..].starts_with(form.content) {
            return None;
        }
        let text = role + length + form.content.len();
        let end = end_of(text)?;
        let is_last = buf.get(end + 1) == Some(&b'}');
        is_last.then(|| PlainMessage { role: Span::new(role, role + length), text: Span::new(text, end) })
    }

    /// True for a message of the user.
    #[inline(always)]
    pub(crate) fn is_users(&self) -> bool {
        self.role.len() == 4
    }

    /// Offset after the message.
    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        self.text.end as usize + 2
    }
}
