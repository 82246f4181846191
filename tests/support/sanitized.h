/* SANITIZED: the test runs under a sanitizer, which makes everything slower, and not evenly. */
#ifndef SLUICE_TESTS_SUPPORT_SANITIZED_H
#define SLUICE_TESTS_SUPPORT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Weights of these types are made by searching a codebook, which takes minutes there: test_qtype does it. */
#define SEARCHED(type) ((type) >= SL_QTYPE_IQ3_XXS && (type) <= SL_QTYPE_IQ1_M)
#define SEARCHED_SLOWLY(type) (SANITIZED && SEARCHED(type))

#endif
