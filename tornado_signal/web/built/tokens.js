export default core=>{
var e=core[41],n=core[15],a=core[52];var c=core[37],i=core[10],s=core[58];var f=6e4;async function p(t,r){try{return await s(i,null,async()=>t())}catch(o){throw!r&&!e(o)?o:a(new n("token-failed","The function `token` failed, or took too long",{cause:o}))}}function l(t){try{let[,r=""]=t.split("."),o=JSON.parse(atob(r.replaceAll("-","+").replaceAll("_","/"))).exp*1e3-Date.now();return o>0?c()+Math.max(o-f,o/2):1/0}catch{return 1/0}}return({ask:p,renewalMs:l});
}
//# sourceMappingURL=tokens.js.map
