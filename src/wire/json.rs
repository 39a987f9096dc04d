//! JSON scanned in place.
