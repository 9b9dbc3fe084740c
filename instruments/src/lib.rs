//! Instruments that measure a network and compare its variants: [`profile`], and with the feature `iree` also
//! `bench`, `tune`, `quality` and `bisect`. The instruments use the facade `tracewright`, which does not
//! depend on them.

#[cfg(feature = "iree")]
pub mod bench;
#[cfg(feature = "iree")]
pub mod bisect;
#[cfg(feature = "iree")]
pub mod calibrate;
pub mod profile;
#[cfg(feature = "iree")]
pub mod quality;
#[cfg(feature = "iree")]
pub mod tune;
