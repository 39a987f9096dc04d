//! Who holds how much of the buffers: one key may hold at most a quarter of `max_buffered` (contract section 1), and
//! nothing is taken that the whole budget does not allow.

use super::exchange::Exchange;
use crate::base::buf::Pool;
use crate::policy::refusal::Refusal;

/// The part of the budget that one key may hold, as a divisor.
const KEY_SHARE: u64 = 4;

/// Bytes of request bodies held, by key.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    by_key: Vec<u64>,
}

impl Charges {
    /// Charges an exchange with `total` bytes of body in all, if it is not charged with that much already. Called with
    /// the declared length before memory is taken, and again as an undeclared body grows.
    pub(crate) fn grow(&mut self, ex: &mut Exchange, total: u64, pool: &Pool) -> Result<(), Refusal> {
        let more = total.saturating_sub(ex.charged);
        let Some(key) = ex.finding.key.filter(|_| more > 0) else { return Ok(()) };
        let index = key.0 as usize;
        if self.by_key.len() <= index {
            self.by_key.resize(index + 1, 0);
        }
        if !pool.has_room(more as usize) {
            return Err(Refusal::no_buffers());
        }
        if self.by_key[index] + more > pool.budget() as u64 / KEY_SHARE {
            return Err(Refusal::key_buffers());
        }
        self.by_key[index] += more;
        ex.charged += more;
        Ok(())
    }

    /// Takes back what an exchange was charged with.
    pub(crate) fn release(&mut self, ex: &mut Exchange) {
        if let Some(held) = ex.finding.key.and_then(|key| self.by_key.get_mut(key.0 as usize)) {
            *held -= ex.charged;
        }
        ex.charged = 0;
    }
}
