//! Owns the queue from helper threads into the event loop: a vector under a lock, and a waker of the poll.
//!
//! Called by every helper thread ([`Mailbox`]) and by the reactor ([`Inbox`]). The loop looks inside only after the
//! waker has raised its event, so an empty box costs it nothing.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pause of a thread that waits for room in the mailbox of the event loop.
const MAILBOX_REST: Duration = Duration::from_millis(10);
/// Messages in the loop's mailbox. Each sender has few outstanding, so a full box means that the loop is dead.
const MAILBOX_MAX: usize = 64 * 1024;

type MailboxState<T> = Arc<(Mutex<Vec<T>>, mio::Waker)>;

/// Sending end; there may be any number.
pub struct Mailbox<T>(MailboxState<T>);

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Mailbox(self.0.clone())
    }
}

impl<T> Mailbox<T> {
    /// Puts `message` into the box and wakes the loop if the box was empty. Returns the message if
    /// `MAILBOX_MAX` messages wait already.
    pub fn send(&self, message: T) -> Result<(), T> {
        let (messages, waker) = &*self.0;
        let was_empty = {
            let mut waiting = messages.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= MAILBOX_MAX {
                return Err(message);
            }
            waiting.push(message);
            waiting.len() == 1
        };
        // Outside the lock, since the woken loop would immediately block on it.
        if was_empty {
            // A failure means that the poll is gone, and with it every reader of this box.
            let _ = waker.wake();
        }
        Ok(())
    }

    /// Likewise, but waits while the box is full, at most until the process ends.
    pub fn send_patiently(&self, mut message: T) {
        while let Err(back) = self.send(message) {
            message = back;
            std::thread::sleep(MAILBOX_REST);
        }
    }
}

/// The receiving end.
pub struct Inbox<T>(MailboxState<T>);

impl<T> Inbox<T> {
    /// Takes all messages, in the order of sending; `into` must be empty and lends its capacity for the next ones.
    pub fn take(&self, into: &mut Vec<T>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    /// Returns a sending end of this box.
    pub fn mailbox(&self) -> Mailbox<T> {
        Mailbox(self.0.clone())
    }
}

/// Creates a box whose waker raises `token` in `registry`'s poll.
pub fn inbox<T>(registry: &mio::Registry, token: mio::Token) -> io::Result<Inbox<T>> {
    Ok(Inbox(Arc::new((Mutex::new(Vec::new()), mio::Waker::new(registry, token)?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn messages_arrive_in_order_and_wake_the_poll_once() {
        let mut poll = mio::Poll::new().unwrap();
        let inbox = inbox(poll.registry(), mio::Token(7)).unwrap();
        let mailbox = inbox.mailbox();
        std::thread::spawn(move || (0..100).for_each(|n| mailbox.send(n).unwrap())).join().unwrap();
        let mut events = mio::Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::from_secs(5))).unwrap();
        assert_eq!(events.iter().map(|e| e.token()).collect::<Vec<_>>(), [mio::Token(7)]);
        let mut got = Vec::new();
        inbox.take(&mut got);
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn full_box_returns_the_message() {
        let poll = mio::Poll::new().unwrap();
        let inbox = inbox(poll.registry(), mio::Token(7)).unwrap();
        let mailbox = inbox.mailbox();
        assert!((0..MAILBOX_MAX).all(|n| mailbox.send(n).is_ok()));
        assert_eq!(mailbox.send(1), Err(1));
        let patient = inbox.mailbox();
        let sender = std::thread::spawn(move || patient.send_patiently(7));
        while mailbox.0.0.try_lock().is_ok() && !sender.is_finished() && mailbox.send(1).is_err() {
            inbox.take(&mut Vec::new());
        }
        sender.join().unwrap();
        let mut got = Vec::new();
        inbox.take(&mut got);
        assert!(got.contains(&7), "{got:?}");
    }
}
