//! Who may do what, and how much. Pure.
