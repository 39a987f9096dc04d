//! Collects the parts of a list that are not sent upstream, while its items are read in order.

use crate::wire::Span;

/// Collects the bytes to omit. A comma is removed with an item: the one before it, or the one after it if no earlier
/// item remains.
#[derive(Debug, Default)]
pub(crate) struct Leave {
    /// Start of the current item.
    start: u32,
    /// End of the last item, and of the last one that remains.
    end: u32,
    kept: Option<u32>,
    /// Start of an item to omit, if no item before it has remained.
    pending: Option<u32>,
}

impl Leave {
    /// Begins an item at `start`.
    pub(crate) fn open(&mut self, start: u32) {
        self.start = start;
    }

    /// Ends an item before `end`; `leaves`: it is omitted.
    #[inline]
    pub(crate) fn close(&mut self, end: u32, leaves: bool, cuts: &mut Vec<Span>) {
        self.end = end;
        if !leaves {
            if let Some(start) = self.pending.take() {
                cuts.push(Span { start, end: self.start });
            }
            self.kept = Some(end);
            return;
        }
        match (self.kept, cuts.last_mut()) {
            (Some(kept), Some(last)) if last.start == kept => last.end = end,
            (Some(kept), _) => cuts.push(Span { start: kept, end }),
            (None, _) => self.pending = self.pending.or(Some(self.start)),
        }
    }

    /// Notes a whole item.
    #[inline]
    pub(crate) fn item(&mut self, item: Span, leaves: bool, cuts: &mut Vec<Span>) {
        self.open(item.start);
        self.close(item.end, leaves, cuts);
    }

    /// Ends the list.
    #[inline]
    pub(crate) fn close_list(&mut self, cuts: &mut Vec<Span>) {
        if let Some(start) = self.pending.take() {
            cuts.push(Span { start, end: self.end });
        }
    }
}
