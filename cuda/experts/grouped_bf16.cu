/* grouped_bf16.cu - the experts' kernel for weights of bf16: grouped.cuh. */
#include "cuda/experts/grouped.cuh"

/* Few pairs wait for weights here, not for products: they need no plan of their own. */
const struct grouped_kernels grouped_bf16 = {{launch_plan<plain_plan<64, 4, GROUPED_OTHERS>>,
                                              launch_plan<plain_plan<64, 4, GROUPED_OTHERS>>,
                                              launch_plan<plain_plan<256, 2, GROUPED_OTHERS>>}};
