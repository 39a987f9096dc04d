//! Descriptors for a test that holds a thousand connections and more, both ends of some of them.

/// More than all tests of one binary have open at a time.
const WANTED: u64 = 32 * 1024;

/// Raises the limit of this process as far as it may: up to the hard limit, and that too where it may do so.
pub fn make_room() {
    let (_, hard) = rlimit::Resource::NOFILE.get().unwrap();
    if hard < WANTED {
        let _ = rlimit::Resource::NOFILE.set(WANTED, WANTED);
    }
    tollgate::io::listen::raise_descriptor_limit().unwrap();
}
