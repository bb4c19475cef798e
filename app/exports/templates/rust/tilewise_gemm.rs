//! C = op(A) x op(B) over the C ABI of tilewise_gemm.h, with the standard library alone.
//!
//! Link tilewise_gemm.o, compiled from tilewise_gemm.c. (A variant over `cudarc` or `cust` would load matmul.cubin by
//! `Ptx::from_binary` or `Module::from_cubin` and launch it as manifest.json says; it is not part of this export.)
use std::ffi::CStr;
use std::fmt;
use std::os::raw::{c_char, c_void};

#[repr(C)]
struct RawGemm {
    _opaque: [u8; 0],
}

extern "C" {
    fn tw_open(device: i32, gemm: *mut *mut RawGemm) -> i32;
    fn tw_matmul(
        gemm: *mut RawGemm, a: *const c_void, b: *const c_void, c: *mut c_void,
        m: i64, n: i64, k: i64, batch: i64, stream: *mut c_void,
    ) -> i32;
    fn tw_matmul_host(
        gemm: *mut RawGemm, a: *const c_void, b: *const c_void, c: *mut c_void,
        m: i64, n: i64, k: i64, batch: i64,
    ) -> i32;
    fn tw_finish(gemm: *mut RawGemm, stream: *mut c_void) -> i32;
    fn tw_workspace(m: i64, n: i64, k: i64, batch: i64) -> i64;
    fn tw_close(gemm: *mut RawGemm);
    fn tw_error() -> *const c_char;
}

/// What the C ABI refused: its status, and its sentence.
#[derive(Debug)]
pub struct Error {
    pub status: i32,
    pub sentence: String,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.status, self.sentence)
    }
}

impl std::error::Error for Error {}

fn checked(status: i32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    let sentence = unsafe { CStr::from_ptr(tw_error()) }.to_string_lossy().into_owned();
    Err(Error { status, sentence })
}

#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub batch: i64,
}

impl Sizes {
    /// Bytes of the GPU's memory that a product needs beside its operands.
    pub fn workspace(self) -> Result<i64, Error> {
        let bytes = unsafe { tw_workspace(self.m, self.n, self.k, self.batch) };
        if bytes < 0 { checked(2).map(|()| bytes) } else { Ok(bytes) }
    }
}

/// The kernel on one GPU.
pub struct Gemm(*mut RawGemm);

unsafe impl Send for Gemm {}

impl Gemm {
    pub fn open(device: i32) -> Result<Gemm, Error> {
        let mut gemm = std::ptr::null_mut();
        checked(unsafe { tw_open(device, &mut gemm) })?;
        Ok(Gemm(gemm))
    }

    /// Queue a product of matrices in the GPU's memory on a stream, null for the default one.
    ///
    /// # Safety
    /// The pointers are to the GPU's memory, of as many elements as the sizes say, until the stream has passed.
    pub unsafe fn multiply(
        &self, a: *const c_void, b: *const c_void, c: *mut c_void, sizes: Sizes, stream: *mut c_void,
    ) -> Result<(), Error> {
        checked(tw_matmul(self.0, a, b, c, sizes.m, sizes.n, sizes.k, sizes.batch, stream))
    }

    /// Multiply slices of the host's memory, and wait. Panics if a slice is shorter than the sizes say.
    pub fn multiply_host<T: Copy>(&self, a: &[T], b: &[T], c: &mut [T], sizes: Sizes) -> Result<(), Error> {
        let of = |rows: i64, columns: i64| (sizes.batch * rows * columns) as usize;
        assert!(a.len() >= of(sizes.m, sizes.k) && b.len() >= of(sizes.k, sizes.n) && c.len() >= of(sizes.m, sizes.n));
        let (a, b, c) = (a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast());
        checked(unsafe { tw_matmul_host(self.0, a, b, c, sizes.m, sizes.n, sizes.k, sizes.batch) })
    }

    /// Wait for a stream; an error of status 6 says that emulated arithmetic declined its last product.
    ///
    /// # Safety
    /// The stream is null or one of the GPU's.
    pub unsafe fn finish(&self, stream: *mut c_void) -> Result<(), Error> {
        checked(tw_finish(self.0, stream))
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        unsafe { tw_close(self.0) }
    }
}
