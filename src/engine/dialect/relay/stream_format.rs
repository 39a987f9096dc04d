//! The state of a relayed stream that only its format has.

/// The format of a stream, with the state that only this format has.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum StreamFormat {
    /// `due`: choices whose end is still expected. A bit for each of the first sixteen choices: `running`: it has begun
    /// and not ended; `ended`: it has ended.
    Chat {
        due: u32,
        running: u16,
        ended: u16,
    },
    /// As in a chat stream.
    Completion {
        due: u32,
        running: u16,
        ended: u16,
    },
    Messages,
    /// Audio, its text, or images. `due`: images still expected; `units`: those that have arrived, or milliseconds of
    /// audio; `begun`: a partial image has arrived, and its image has not; `listed`: the server names each image;
    /// `words`: the answer is the text of audio; `timed`: its length is billed.
    Media {
        due: u32,
        units: u32,
        begun: bool,
        listed: bool,
        words: bool,
        timed: bool,
    },
    /// `next`: number of the next event; `inserted`: Tollgate's own events between the upstream's; `opened`: the events
    /// that open a response have been sent; `answered`: an event of an item has arrived.
    Responses {
        next: u32,
        inserted: u16,
        opened: bool,
        answered: bool,
    },
}
