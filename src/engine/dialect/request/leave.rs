//! Collects the parts of a list that are not sent upstream, while its items are read in order.

use crate::wire::Span;

/// Collects the bytes to omit. A comma is removed with an item: the one before it, or the one after it if no earlier
/// item remains.
#[derive(Debug, Default)]
pub(crate) struct Leave {
    /// End of the last item, and of the last one that remains.
    end: u32,
    kept: Option<u32>,
    /// Start of an item to omit, if no item before it has remained.
    pending: Option<u32>,
}

impl Leave {
    /// Notes the next item; `leaves`: it is omitted.
    #[inline]
    pub(crate) fn item(&mut self, item: Span, leaves: bool, cuts: &mut Vec<Span>) {
        self.end = item.end;
        if !leaves {
            if let Some(start) = self.pending.take() {
                cuts.push(Span { start, end: item.start });
            }
            self.kept = Some(item.end);
            return;
        }
        match (self.kept, cuts.last_mut()) {
            (Some(kept), Some(last)) if last.start == kept => last.end = item.end,
            (Some(kept), _) => cuts.push(Span { start: kept, end: item.end }),
            (None, _) => self.pending = self.pending.or(Some(item.start)),
        }
    }

    /// Ends the list.
    #[inline]
    pub(crate) fn close_list(&mut self, cuts: &mut Vec<Span>) {
        if let Some(start) = self.pending.take() {
            cuts.push(Span { start, end: self.end });
        }
    }
}
