//! Channels for rare messages between threads: the library's channel for one boxed type, with conversion at both ends.
//! Each type that its code is compiled for adds nine kilobytes to the binary; the cost of a box does not matter for
//! messages sent once an hour. Messages of every request use `batch_queue` or `mailbox`.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::time::Duration;

pub use std::sync::mpsc::RecvTimeoutError;

type Parcel = Box<dyn Any + Send>;

/// Error: the other end is gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Gone;

/// Sending end of an unbounded channel: each user documents its bound.
pub struct Sender<T>(mpsc::Sender<Parcel>, PhantomData<fn(T)>);

/// Sending end of a bounded channel.
pub struct BoundedSender<T>(mpsc::SyncSender<Parcel>, PhantomData<fn(T)>);

/// Receiving end.
pub struct Receiver<T>(mpsc::Receiver<Parcel>, PhantomData<fn() -> T>);

/// Creates a channel; its messages arrive in the order they were sent.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let (give, take) = mpsc::channel();
    (Sender(give, PhantomData), Receiver(take, PhantomData))
}

/// Creates a channel of at most `bound` messages.
pub fn bounded<T>(bound: usize) -> (BoundedSender<T>, Receiver<T>) {
    let (give, take) = mpsc::sync_channel(bound);
    (BoundedSender(give, PhantomData), Receiver(take, PhantomData))
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.clone(), PhantomData)
    }
}

impl<T: Send + 'static> Sender<T> {
    /// Sends; never waits.
    pub fn send(&self, message: T) -> Result<(), Gone> {
        self.0.send(Box::new(message)).map_err(|_| Gone)
    }
}

impl<T> Clone for BoundedSender<T> {
    fn clone(&self) -> Self {
        BoundedSender(self.0.clone(), PhantomData)
    }
}

impl<T: Send + 'static> BoundedSender<T> {
    /// Sends; waits for room.
    pub fn send(&self, message: T) -> Result<(), Gone> {
        self.0.send(Box::new(message)).map_err(|_| Gone)
    }

    /// Sends if there is room. False if not, or if the receiver is gone.
    pub fn try_send(&self, message: T) -> bool {
        self.0.try_send(Box::new(message)).is_ok()
    }
}

impl<T: 'static> Receiver<T> {
    /// Waits for the next message.
    pub fn recv(&self) -> Result<T, Gone> {
        opened(self.0.recv().map_err(|_| Gone)?).ok_or(Gone)
    }

    /// Waits for the next message, at most for `wait`.
    pub fn recv_timeout(&self, wait: Duration) -> Result<T, RecvTimeoutError> {
        opened(self.0.recv_timeout(wait)?).ok_or(RecvTimeoutError::Disconnected)
    }
}

/// Unboxes a message; every parcel has the type of both ends.
fn opened<T: 'static>(parcel: Parcel) -> Option<T> {
    let message = parcel.downcast().ok();
    debug_assert!(message.is_some(), "a message of another type");
    message.map(|message| *message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_before_the_end() {
        let (give, take) = channel();
        let other = give.clone();
        give.send("one".to_string()).unwrap();
        other.send("two".to_string()).unwrap();
        drop((give, other));
        assert_eq!(take.recv(), Ok("one".to_string()));
        assert_eq!(take.recv_timeout(Duration::ZERO), Ok("two".to_string()));
        assert_eq!(take.recv(), Err(Gone));
        assert_eq!(take.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn waits_are_bounded_and_a_closed_end_is_noticed() {
        let (give, take) = channel::<u32>();
        assert_eq!(take.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        drop(take);
        assert_eq!(give.send(1), Err(Gone));
    }

    #[test]
    fn channel_accepts_no_more_than_its_bound() {
        let (give, take) = bounded(2);
        assert_eq!([1, 2, 3].map(|n| give.try_send(n)), [true, true, false]);
        assert_eq!(take.recv(), Ok(1));
        assert!(give.try_send(4));
    }
}
