//! The result of an append to a ledger, so that the compiler finds an append whose consequences are forgotten.

/// Rows that a ledger has just appended. One function takes it and does everything that follows an append: in the store
/// thread `wrote`, at the start [`super::spill::Importer::keep`].
#[must_use = "an append is followed by syncs, copies and notices"]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    rows: u64,
}

impl Written {
    /// Appended rows: this number.
    pub(super) fn from_rows(rows: usize) -> Written {
        Written { rows: rows as u64 }
    }

    /// These rows and `more`.
    pub(super) fn and(self, more: Written) -> Written {
        Written { rows: self.rows + more.rows }
    }

    /// True if the ledger had all rows already.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }
}
