//! Two queues of the event loop: links to be served, and links to be flushed. A link is in each of them at most once.

use super::super::links::{Flags, Link};
use crate::base::seam::Conn;
use crate::base::slots::Id;
use std::collections::VecDeque;

/// Puts a link into the run queue, once.
#[inline]
pub(super) fn line_up(run_queue: &mut VecDeque<Id<Link>>, id: Id<Link>, link: &mut Link) {
    if link.has(Flags::QUEUED) {
        return;
    }
    link.set(Flags::QUEUED);
    // A dial has a deadline, and the queue may be longer than an iteration.
    match link.has(Flags::DIALING) {
        true => run_queue.push_front(id),
        false => run_queue.push_back(id),
    }
}

/// Puts a link into the queue of links to be flushed, once.
#[inline]
pub(super) fn touch(touched: &mut Vec<Conn>, link: &mut Link) {
    if !link.has(Flags::TOUCHED) {
        link.set(Flags::TOUCHED);
        touched.push(link.conn());
    }
}
