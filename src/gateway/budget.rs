//! Who holds how much of the buffers. A request's body is promised its bytes when its head passes, before any memory is
//! taken: at most a quarter of `max_buffered` to one key (contract section 1), and nothing that is not free. So what
//! lies in buffers and what may still come never add up to more than the budget.
//!
//! The last eighth of the budget is not for bodies: the answers of those who are admitted pass through it.

use crate::base::buf::Pool;
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;

/// The part of the budget that one key may hold, as a divisor.
const KEY_SHARE: u64 = 4;
/// The part of the budget that bodies leave to answers, as a divisor.
const ANSWER_SHARE: usize = 8;

/// Bytes of request bodies promised, by key.
#[derive(Debug, Default)]
pub(crate) struct BodyBudget {
    by_key: Vec<u64>,
}

/// What one request has been promised. It goes back by [`BodyBudget::release`].
#[derive(Debug, Default)]
pub(crate) struct Promise {
    key: Option<KeyIx>,
    total: u64,
    /// How much of it is still kept free: it has not come.
    open: usize,
}

impl BodyBudget {
    /// Promises a body `total` bytes in all, if it has not been promised that much already. Called with the declared
    /// length before memory is taken, and again as an undeclared body grows.
    pub(crate) fn promise(
        &mut self,
        promise: &mut Promise,
        key: KeyIx,
        total: u64,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let more = total.saturating_sub(promise.total);
        if more == 0 {
            return Ok(());
        }
        let index = key.0 as usize;
        if self.by_key.len() <= index {
            self.by_key.resize(index + 1, 0);
        }
        let bytes = usize::try_from(more).unwrap_or(usize::MAX);
        if pool.room().saturating_sub(pool.budget() / ANSWER_SHARE) < bytes {
            return Err(Refusal::no_buffers());
        }
        if self.by_key[index] + more > pool.budget() as u64 / KEY_SHARE {
            return Err(Refusal::key_buffers());
        }
        self.by_key[index] += more;
        promise.key = Some(key);
        promise.total = total;
        promise.open += bytes;
        pool.promise(bytes);
        Ok(())
    }

    /// The body takes `storage` bytes by now: so much of its promise need not be kept free any more.
    pub(crate) fn came(&self, promise: &mut Promise, storage: usize, pool: &mut Pool) {
        let open = usize::try_from(promise.total).unwrap_or(usize::MAX).saturating_sub(storage);
        if open < promise.open {
            pool.redeem(promise.open - open);
            promise.open = open;
        }
    }

    /// Takes a promise back: the body is gone.
    pub(crate) fn release(&mut self, promise: &mut Promise, pool: &mut Pool) {
        let promise = std::mem::take(promise);
        pool.redeem(promise.open);
        if let Some(held) = promise.key.and_then(|key| self.by_key.get_mut(key.0 as usize)) {
            *held -= promise.total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::buf::Buf;

    #[test]
    fn what_is_promised_is_not_promised_again_although_nothing_of_it_has_come() {
        let (mut budget, mut pool) = (BodyBudget::default(), Pool::new(8_000));
        let mut promises: Vec<Promise> = Vec::new();
        let mut refused = 0;
        for key in 0..10 {
            let mut promise = Promise::default();
            match budget.promise(&mut promise, KeyIx(key), 2_000, &mut pool) {
                Ok(()) => promises.push(promise),
                Err(_) => refused += 1,
            }
        }
        assert_eq!((promises.len(), refused, pool.promised()), (3, 7, 6_000), "an eighth is left to answers");
        let mut body = Buf::default();
        body.push(&mut pool, &[0; 1_500]);
        budget.came(&mut promises[0], 1_500, &mut pool);
        assert_eq!(pool.promised(), 4_500);
        for promise in &mut promises {
            budget.release(promise, &mut pool);
        }
        body.release(&mut pool);
        assert_eq!((pool.promised(), pool.room()), (0, 8_000));
        assert_eq!(budget.by_key, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..budget.by_key.len()]);
    }

    #[test]
    fn one_key_holds_at_most_a_quarter_however_its_body_grows() {
        let (mut budget, mut pool, mut promise) = (BodyBudget::default(), Pool::new(8_000), Promise::default());
        assert!(budget.promise(&mut promise, KeyIx(0), 1_000, &mut pool).is_ok());
        assert!(budget.promise(&mut promise, KeyIx(0), 2_000, &mut pool).is_ok());
        assert!(budget.promise(&mut promise, KeyIx(0), 2_001, &mut pool).is_err());
        assert!(budget.promise(&mut Promise::default(), KeyIx(1), 2_000, &mut pool).is_ok());
    }
}
