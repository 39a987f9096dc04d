//! Passes long work to the helper threads and takes it back. In the meantime its memory is charged: to the key of the
//! exchange that waits, by the exchange's promise; otherwise, for abandoned work and blocks being freed, to their key
//! as leaving bytes. The work itself is defined in [`crate::gateway::orders::offload`].

use crate::gateway::cx::Cx;
use crate::gateway::orders::Order;
use crate::gateway::orders::offload::{JobOwner, OffloadTask, OwnedIdentity, RunningJob, Work};
use crate::policy::keys::KeyIx;
use std::num::NonZeroU64;

impl Cx {
    /// Returns the number of the next job.
    pub(crate) fn next_offload(&mut self) -> NonZeroU64 {
        self.away.given += 1;
        NonZeroU64::new(self.away.given).unwrap_or(NonZeroU64::MIN)
    }

    /// Gives a task to a helper thread, with storage of `lent` bytes.
    pub(crate) fn offload(&mut self, of: JobOwner, lent: usize, identity: OwnedIdentity, task: OffloadTask) {
        let alone = matches!(task, OffloadTask::Discard(_) | OffloadTask::Catalog { .. });
        self.away.pieces.push(RunningJob { serial: of.serial.get(), key: of.key, lent, alone });
        let work = Work::new(of, (&mut self.memory.pool, lent), identity, task);
        self.commands.orders.push(Order::Work(Box::new(work)));
    }

    /// Frees unused large blocks, after work for `key`.
    #[inline]
    pub(crate) fn free_heavy(&mut self, key: Option<KeyIx>) {
        if self.memory.pool.has_heavy() {
            self.discard_heavy(key);
        }
    }

    /// Lets a helper thread return unused large blocks to the system. Nothing waits for that. Until it is done, the
    /// blocks are charged to `key`, their last user.
    fn discard_heavy(&mut self, key: Option<KeyIx>) {
        let (blocks, lent) = self.memory.pool.heavy();
        if let Some(key) = key {
            self.memory.shares.leaves(key, lent);
        }
        let of = JobOwner::alone(key, self.next_offload());
        self.offload(of, lent, OwnedIdentity::default(), OffloadTask::Discard(blocks));
    }

    /// Notes that the exchange that waited for a job has ended.
    pub(crate) fn abandon(&mut self, serial: NonZeroU64) {
        let Some(piece) = self.away.pieces.iter_mut().find(|piece| piece.serial == serial.get()) else { return };
        piece.alone = true;
        if let Some(key) = piece.key {
            self.memory.shares.leaves(key, piece.lent);
        }
    }

    /// Notes that a job is back.
    pub(crate) fn returned(&mut self, serial: u64) {
        let Some(at) = self.away.pieces.iter().position(|piece| piece.serial == serial) else { return };
        let piece = self.away.pieces.swap_remove(at);
        if let Some(key) = piece.key.filter(|_| piece.alone) {
            self.memory.shares.left(key, piece.lent);
        }
    }
}
